"""From rounds to figures, without a process."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dynbranch.bench import carries, hit_path, pass_through, peers
from dynbranch.bench.pages import page_with
from dynbranch.bench.peer_installs import LITELLM, Peer, PeerMissing, cache_dir, program
from dynbranch.bench.stand import percentile, turns

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_arm_is_early_as_often_as_late(count: int) -> None:
    arms = [f"arm-{number}" for number in range(count)]
    at = Counter(
        (arm, place) for repetition in range(2 * count) for place, arm in enumerate(turns(arms, repetition))
    )
    assert set(at.values()) == {2} and len(at) == count**2


def test_percentiles() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile(list(range(1000)), 0.5) == 500


def _prices(p50_ms: float, cpu_us: float = 100.0) -> dict[str, float]:
    return {
        "p50_ms": p50_ms,
        "p99_ms": 2 * p50_ms,
        "max_ms": 3 * p50_ms,
        "per_s": 1000 / p50_ms,
        "cpu_us_per_request": cpu_us,
        "gap_p99_ms": 20 + p50_ms,
        "cpu_us_per_token": cpu_us / 10,
    }


def _round(*, litellm: bool) -> dict[str, Any]:
    arms = {"direct": _prices(1.0), "plain": _prices(1.5), "dynbranch": _prices(3.0, 400.0)}
    if litellm:
        arms["litellm"] = _prices(21.0, 9000.0)
    return {"alone": arms, "crowd": arms, "streams": arms}


STORELESS = {"direct": _prices(1.0), "hanging": _prices(4.0), "dead": _prices(2.0)}


def test_pass_through_figures_are_differences_and_ratios_of_one_round() -> None:
    figures = pass_through.figures([_round(litellm=True)] * 3, [STORELESS] * 2)
    assert figures["added_p50_ms"].value == 2.0
    assert figures["added_p50_over_litellm"].value == pytest.approx(0.1)
    assert figures["requests_per_s_over_litellm"].value == pytest.approx(7.0)
    assert figures["cpu_per_request_over_plain_proxy"].value == 4.0
    assert figures["inter_token_added_p99_ms"].value == 2.0
    assert figures["csl_down_added_p99_ms"].value == 6.0
    assert figures["csl_down_longest_ms"].value == 12.0


def test_without_litellm_its_figures_are_not_there() -> None:
    figures = pass_through.figures([_round(litellm=False)], [STORELESS])
    assert not [key for key in figures if "litellm" in key]


def _hits(outcomes: dict[str, int], p50_ms: float = 1.0) -> dict[str, Any]:
    return _prices(p50_ms) | {"first_byte_p50_ms": p50_ms, "outcomes": outcomes, "requests": 100}


def _hit_round(cascade: dict[str, Any] | None = None) -> dict[str, Any]:
    whole = {"dynbranch": _hits({"hit": 100}), "litellm": _hits({"hit": 100}, 8.0)}
    felled = {
        "requests": 200,
        "outcomes": {"hit": 200},
        "hits_during": 90,
        "invalidated": hit_path.DEPENDANTS,
        "p99_ms": 9.0,
    }
    return {
        "alone": whole,
        "crowd": whole,
        "large": {"plain": _hits({"hit": 100}), "stream": _hits({"hit": 99}, 1.25)},
        "cascade": felled | (cascade or {}),
    }


def test_hit_figures() -> None:
    rounds = [_hit_round()] * 2
    figures = hit_path.figures(rounds)
    assert figures["p50_over_litellm_cache_hit"].value == 0.125
    assert figures["requests_per_s_over_litellm_cache_hit"].value == 8.0
    assert figures["stream_first_byte_over_plain"].value == 1.25
    assert figures["p99_ms_during_1e4_cascade"].value == 9.0
    assert not hit_path.failures(rounds)


@pytest.mark.parametrize(
    "cascade", [{"outcomes": {"hit": 9, "miss": 1}}, {"outcomes": {}}, {"hits_during": 3}, {"invalidated": 7}]
)
def test_a_run_that_shows_nothing_fails(cascade: dict[str, Any]) -> None:
    assert len(hit_path.failures([_hit_round(cascade)])) == 1


def test_the_table_of_peers_has_a_row_for_each_way() -> None:
    direct = {"p50_ms": 1.0, "p99_ms": 2.0, "added_p50_ms": 0.0, "added_p99_ms": 0.0, "per_s": 9.0}
    rounds = [{"direct": direct, "DynBranch, hit": direct | {"added_p50_ms": 1.5, "cpu_us_per_request": 7.0}}]
    headings, *rows = peers.table(rounds)
    assert [row[0] for row in rows] == ["direct", "DynBranch, hit"]
    assert all(len(row) == len(headings) for row in rows)
    page = page_with(
        "# Peers\n<!-- bench peers -->\nold\n<!-- end -->\nmore\n", peers.PLACE, [headings, *rows]
    )
    assert "old" not in page and page.startswith("# Peers\n") and page.endswith("<!-- end -->\nmore\n")
    assert "| DynBranch, hit | 7.00 |" in page
    assert not peers.failures(rounds)
    rounds[0]["direct"]["hit_share"] = 0.5
    assert len(peers.failures(rounds)) == 1
    figures = peers.figures(rounds)
    assert figures["dynbranch_hit.added_p50_ms"].value == 1.5
    assert "direct.added_p50_ms" not in figures and "direct.per_s" in figures


def test_a_peer_that_can_not_be_installed_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    nowhere = Peer("nowhere", f"nowhere @ file://{tmp_path}/none-1-py3-none-any.whl", "nowhere")
    with pytest.raises(PeerMissing, match=r"by hand|this failed"):
        program(nowhere, lambda what, done, total: told.append(what))
    assert told and cache_dir().is_relative_to(tmp_path)
    assert LITELLM.version


def test_the_page_shows_the_committed_result() -> None:
    """``python -m dynbranch.bench.peers bench/results/peers.json docs/peers.md`` makes it so."""
    result = ROOT / "bench" / "results" / "peers.json"
    rounds = json.loads(result.read_text(encoding="utf-8"))["raw"]["rounds"]
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert page_with(page, peers.PLACE, peers.table(rounds)) == page


def test_what_a_process_carries_follows_from_its_time() -> None:
    each = {"gateway": 500.0, "engine agent": 250.0}
    passed = {"crowd": {"dynbranch": {"cpu_us_per_request_of": each}}}
    passed["streams"] = {"dynbranch": {"cpu_us_per_token_of": {"gateway": 100.0, "engine agent": 125.0}}}
    hits = {"crowd": {"dynbranch": {"cpu_us_per_request_of": {"gateway": 400.0, "csl": 200.0}}}}
    rows = carries.table({"raw": {"rounds": [passed]}}, {"raw": {"rounds": [hits]}})
    assert ("gateway", "requests that reach an engine", "500", "2,000", "1,400") in rows
    assert ("engine agent", "streamed tokens", "125", "8,000", "5,600") in rows
    assert ("store", "hits", "200", "5,000", "3,500") in rows


def test_the_page_of_costs_shows_the_committed_results() -> None:
    """``python -m dynbranch.bench.carries bench/results docs/cost.md`` makes it so."""
    passed, hits = (
        json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("pass_through", "hit_path")
    )
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    assert page_with(page, carries.PLACE, carries.table(passed, hits)) == page
    assert page_with(page, carries.COSTS_PLACE, carries.costs(passed, hits)) == page


def test_a_page_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place"):
        page_with("# Nothing\n", "bench peers", [("a", "b")])
