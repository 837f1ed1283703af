"""Routes, tenants, the reporter and the reuse policy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from dynbranch.controller.fake import FakeController
from dynbranch.domain.engine import Freshness
from dynbranch.domain.events import OutcomeSeen
from dynbranch.domain.ids import DemandId, UnixMs
from dynbranch.domain.reuse import Level
from dynbranch.gateway.arrivals import sharing_group
from dynbranch.gateway.core.reuse_policy import ReusePolicy, storable, why_not_reused
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.edge.routes import ANY, Route, Routes
from dynbranch.gateway.protocols.errors import ApiError, unknown_model
from dynbranch.gateway.reporter import Reporter
from dynbranch.gateway.tenants import load_tenants
from dynbranch.runtime.clock import ManualClock
from dynbranch.runtime.config import ConfigError


async def handler(exchange: Exchange, rest: str) -> None:
    raise AssertionError


ROUTES = Routes(
    [
        Route("GET", "/v1/models", handler),
        Route("GET", "/v1/models/…", handler),
        Route("POST", "/v1/chat/completions", handler),
        Route(ANY, "/v1/…", handler),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found", "rest"),
    [
        ("GET", "/v1/models", "/v1/models", ""),
        ("HEAD", "/v1/models", "/v1/models", ""),
        ("GET", "/v1/models/a/b", "/v1/models/…", "a/b"),
        ("DELETE", "/v1/embeddings", "/v1/…", "embeddings"),
    ],
)
def test_routes(method: str, path: str, found: str, rest: str) -> None:
    route, argument = ROUTES.find(method, path)
    assert (route.path, argument) == (found, rest)


@pytest.mark.parametrize(("method", "path", "status"), [("PUT", "/v1/models", 405), ("GET", "/nowhere", 404)])
def test_wrong_method_and_unknown_path(method: str, path: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        ROUTES.find(method, path)
    assert caught.value.status == status


def test_without_a_file_there_is_one_tenant_and_no_keys() -> None:
    assert load_tenants("").of({"authorization": "Bearer anything"}) == "default"


def test_keys_lead_to_tenants(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"sk-b").hexdigest()
    (tmp_path / "keys.toml").write_text(f'[keys]\n"sk-a" = "one"\n"sha256:{hashed}" = "two"\n')
    tenants = load_tenants(str(tmp_path / "keys.toml"))
    assert tenants.of({"authorization": "Bearer sk-a"}) == "one"
    assert tenants.of({"x-api-key": "sk-b"}) == "two"
    for headers in ({}, {"authorization": "Bearer sk-c"}, {"authorization": "Basic sk-a"}):
        with pytest.raises(ApiError) as caught:
            tenants.of(headers)
        assert caught.value.status == 401


@pytest.mark.parametrize(
    "data",
    [
        b"[keys",
        b"\xff",
        b"keys = " + b"[" * 5000 + b"]" * 5000,
        b"keys = " + b"9" * 5000,
        b"keys = 2020-99-99",
        b"keys = 1",
        b'[keys]\n"sk-a" = 1',
        b'operators = 1\n[keys]\n"sk-a" = "one"',
        b"operators = [[1]]\n[keys]",
        b"[[keys]]",
        b"[nothing]",
    ],
)
def test_a_wrong_file_of_keys_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "keys.toml").write_bytes(data)
    with pytest.raises(ConfigError, match=r"keys\.toml"):
        load_tenants(str(tmp_path / "keys.toml"))


def test_operators_are_told_from_other_tenants(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('operators = ["one"]\n[keys]\n"sk-a" = "one"\n"sk-b" = "two"\n')
    tenants = load_tenants(str(tmp_path / "keys.toml"))
    assert tenants.operator({"x-api-key": "sk-a"}) == "one"
    with pytest.raises(ApiError) as caught:
        tenants.operator({"x-api-key": "sk-b"})
    assert caught.value.status == 403 and "operators" in caught.value.message
    assert load_tenants("").operator({}) == "default"


@pytest.mark.parametrize(
    "text",
    [
        "[keys]\na = 1",
        "not toml",
        "keys = 3",
        "operators = 3",
        'operators = ["b"]\n[keys]\n"k" = "a"',
        '[keys]\n"k" = "a"\noperators = ["a"]',
        'operator = ["a"]\n[keys]\n"k" = "a"',
    ],
)
def test_a_wrong_file_of_keys_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError):
        load_tenants(str(tmp_path / "keys.toml"))


def outcome(number: int) -> OutcomeSeen:
    return OutcomeSeen(UnixMs(0), DemandId(number.to_bytes(16, "big")), "hit", 1.0)


def test_who_shares_a_result() -> None:
    groups = [
        sharing_group("a", ()),
        sharing_group("a", (("authorization", "x"),)),
        sharing_group("a", (("authorization", "y"),)),
        sharing_group("b", (("authorization", "x"),)),
        sharing_group("a", (("authorizationx", ""),)),
    ]
    assert len(set(groups)) == len(groups) and groups[0] == "tenant/a"
    assert "x" not in groups[1].split("/")


async def test_what_does_not_fit_is_dropped_counted_and_its_numbers_skipped() -> None:
    controller = FakeController()
    reporter = Reporter(controller, name="g", clock=ManualClock(), max_queued=3)
    for number in range(5):
        reporter.report(outcome(number))
    await reporter.flush()
    reporter.report(outcome(9))
    await reporter.flush()
    assert reporter.dropped == 2
    assert [(batch.first_number, len(batch.events)) for batch in controller.batches] == [(0, 3), (5, 1)]
    assert (await controller.summary(timeout_s=1)).lost == 2


async def test_an_undelivered_batch_is_delivered_later_under_its_own_number() -> None:
    controller = FakeController()
    controller.reachable = False
    reporter = Reporter(controller, name="g", clock=ManualClock())
    reporter.report(outcome(1))
    await reporter.flush()
    reporter.report(outcome(2))
    controller.reachable = True
    await reporter.flush()
    assert [(batch.first_number, len(batch.events)) for batch in controller.batches] == [(0, 1), (1, 1)]


async def test_a_controller_that_is_gone_is_left_alone_at_the_end() -> None:
    controller = FakeController()
    controller.reachable = False
    reporter = Reporter(controller, name="g", clock=ManualClock())
    reporter.report(outcome(1))
    await reporter.flush()
    assert controller.batches == []


@pytest.mark.parametrize(
    ("policy", "level", "reused"),
    [
        (ReusePolicy.GREEDY, Level.GREEDY, True),
        (ReusePolicy.GREEDY, Level.BATCH_INVARIANT, True),
        (ReusePolicy.GREEDY, Level.SAMPLED, False),
        (ReusePolicy.BATCH_INVARIANT, Level.GREEDY, False),
        (ReusePolicy.BATCH_INVARIANT, Level.BATCH_INVARIANT, True),
        (ReusePolicy.OFF, Level.BATCH_INVARIANT, False),
    ],
)
def test_reuse_policy(policy: ReusePolicy, level: Level, reused: bool) -> None:
    assert (why_not_reused(policy, level, request="", model="") == "") is reused


def test_the_request_and_the_model_may_forbid_reuse() -> None:
    assert why_not_reused(ReusePolicy.GREEDY, Level.GREEDY, request="sampled", model="") == "sampled"
    assert why_not_reused(ReusePolicy.GREEDY, Level.GREEDY, request="", model="a clock") == "a clock"


def test_only_tools_with_a_source_are_stored() -> None:
    assert storable(Freshness.VERSIONED, "s") and storable(Freshness.IMMUTABLE, "")
    assert not storable(Freshness.NONE, "s") and not storable(Freshness.WRITES_REPORTED, "")


def test_an_unknown_model_names_ten_others_at_most() -> None:
    assert "No model is served here." in unknown_model("x", []).message
    said = unknown_model("x", [f"m{number}" for number in range(12)]).message
    assert "'m0'" in said and "'m9' and 2 more." in said and "'m10'" not in said
