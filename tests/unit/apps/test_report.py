"""The arithmetic of the demonstration: what counts as equal, as stale, as untouched."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from dynbranch.demo.harness import Call
from dynbranch.demo.measures import exact, median, ratio, share
from dynbranch.demo.report import Arm, Report, Written, equality, stale_hits
from dynbranch.demo.show import ProgressWatcher, print_report, print_verdict
from rich.console import Console


def call(
    key: str, outcome: str = "miss", result: bytes = b"r", reads: tuple[str, ...] = (), ms: float = 10
) -> Call:
    return Call(
        key=key,
        stage=key.rpartition("/")[2],
        outcome=outcome,
        latency_ms=ms,
        result=result,
        text="",
        request=key,
        reads=reads,
    )


def keyed(*calls: Call) -> dict[str, Call]:
    return {c.key: c for c in calls}


def test_equality_counts_results_and_names_the_differing() -> None:
    held = equality([call("a"), call("b", result=b"x"), call("c")], keyed(call("a"), call("b")))
    assert (held.equal, held.total, held.differing) == (1, 3, ("b", "c"))
    assert not held.holds
    assert not equality([], {}).holds


WRITTEN = frozenset({"passages/1"})


@pytest.mark.parametrize(
    ("calls", "stale"),
    [
        ([call("a", "hit")], []),
        ([call("a", "hit", result=b"old")], ["a"]),
        ([call("a", "joined", result=b"old")], ["a"]),
        ([call("a", "miss", result=b"old")], []),
        ([call("a", "hit", reads=("passages/1",))], ["a"]),
        ([call("a", "hit", reads=("passages/*",))], ["a"]),
        ([call("a", "hit", reads=("passages/2",))], []),
        ([call("a", "miss", reads=("passages/1",)), call("a", "hit", reads=("passages/1",))], []),
        ([call("unknown to the floor", "hit")], ["unknown to the floor"]),
    ],
)
def test_a_hit_is_stale_when_it_differs_or_read_what_was_written(calls: list[Call], stale: list[str]) -> None:
    assert [c.key for c in stale_hits(calls, keyed(call("a")), WRITTEN)] == stale


def get(number: int, outcome: str, result: bytes, ms: float = 10) -> Call:
    return call(f"q{number}/get", outcome, result, (f"passages/{number}",), ms)


def report() -> Report:
    """Twelve questions that each get a passage; the first three passages are written."""

    def arm(name: str, outcome: str, ms: float = 10) -> Arm:
        return Arm(name, name, tuple(get(i, outcome, b"old", ms) for i in range(12)))

    after = tuple(get(i, "miss", b"new") if i < 3 else get(i, "hit", b"old") for i in range(12))
    return Report(
        floor=arm("floor", "bypass", 100),
        control=arm("control", "bypass"),
        first=arm("first", "miss"),
        second=arm("second", "hit"),
        after=Arm("after", "after", after),
        fresh_floor=Arm("fresh", "fresh", tuple(replace(c, outcome="bypass") for c in after)),
        writes=tuple(Written(f"passages/{i}", "t", 2, 2, ()) for i in range(3)),
        gone=(),
        records=12,
    )


def test_a_good_run_has_no_problems_and_exact_figures() -> None:
    good = report()
    assert good.problems() == []
    figures = good.figures()
    for key in (
        "floor_vs_floor_equal_share",
        "byte_equal_share",
        "second_pass_hit_share",
        "untouched_hit_share",
    ):
        assert figures[key].value == figures[key].ci_low == figures[key].ci_high == 1.0
    assert figures["invalidated_by_write"].value == 6
    assert figures["stale_hits_after_write"].value == 0
    assert figures["stale_hits_after_write"].n == 9
    assert figures["mean_floor_over_second_pass"].value == pytest.approx(10)
    assert figures["requests"].value == 12
    assert [arm["name"] for arm in good.as_json()["arms"]][:2] == ["floor", "control"]


def spoiled(arm: Arm, index: int, **changes: object) -> Arm:
    calls = list(arm.calls)
    calls[index] = replace(calls[index], **changes)  # type: ignore[arg-type]
    return replace(arm, calls=tuple(calls))


@pytest.mark.parametrize(
    ("field", "index", "changes", "says"),
    [
        ("control", 0, {"result": b"x"}, "control: 1 results differ"),
        ("first", 0, {"result": b"x"}, "first: 1 results differ"),
        ("second", 5, {"outcome": "miss"}, "1 requests did not hit"),
        ("after", 0, {"outcome": "hit"}, "1 stale results"),
        ("after", 0, {"result": b"old"}, "after: 1 results differ"),
        ("after", 5, {"outcome": "miss"}, "did not touch were lost"),
    ],
)
def test_what_does_not_hold_is_a_problem(
    field: str, index: int, changes: dict[str, object], says: str
) -> None:
    good = report()
    bad = replace(good, **{field: spoiled(getattr(good, field), index, **changes)})
    assert any(says in problem for problem in bad.problems()), bad.problems()


def test_a_write_that_removes_nothing_is_a_problem() -> None:
    assert any("freshness is empty" in p for p in replace(report(), writes=()).problems())


def test_figures_bound_their_values() -> None:
    assert share(3, 4).value == 0.75
    assert exact(0, 5).ci_high == 0
    for figure in (median([1.0, 2.0, 9.0]), ratio([(10.0, 1.0), (20.0, 4.0), (5.0, 1.0)])):
        assert figure.ci_low <= figure.value <= figure.ci_high
        assert figure.n == 3
    assert ratio([]).n == 0


def test_the_verdict_and_what_to_do_next_come_last() -> None:
    said = io.StringIO()
    console = Console(file=said, width=500)
    print_report(report(), console)
    assert "after, disabled: the questions asked" in said.getvalue()
    print_verdict(report(), console)
    last = said.getvalue().splitlines()[-1]
    assert last.startswith("Next: 'make up'") and "✓" in said.getvalue()
    wrong = io.StringIO()
    print_verdict(replace(report(), writes=()), Console(file=wrong, width=500))
    assert "✗" in wrong.getvalue() and "Next" not in wrong.getvalue()


def test_where_no_bar_is_drawn_lines_say_how_far_it_is() -> None:
    said = io.StringIO()
    with ProgressWatcher(Console(file=said, width=200)) as watcher:
        watcher.ready(1.0, 40)
        watcher.arm("second pass")
        watcher.task_done()
    assert "second pass: records of all passes 1/40" in said.getvalue()
