"""What is read of an answer."""

from __future__ import annotations

from types import SimpleNamespace

import dynbranch.client
import httpx2
import pytest
from dynbranch.domain.ids import BranchId, Name
from dynbranch.domain.reuse import Level
from dynbranch.gateway.core.outcome import Outcome, Report, outcome_headers
from hypothesis import given
from hypothesis import strategies as st
from openai import APIStatusError

REPORTS = st.builds(
    Report,
    outcome=st.sampled_from(Outcome),
    request_id=st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True),
    level=st.none() | st.sampled_from(Level),
    name=st.none() | st.binary(min_size=32, max_size=32).map(Name),
    saved_ms=st.floats(0, 1e6),
    branch=st.none() | st.binary(min_size=16, max_size=16).map(BranchId),
)


@given(REPORTS)
def test_what_a_gateway_says_is_read(report: Report) -> None:
    headers = httpx2.Headers(outcome_headers(report))
    seen = dynbranch.client.outcome(headers)
    assert seen is not None
    assert (seen.kind, seen.request_id) == (report.outcome.value, report.request_id)
    assert seen.level == (None if report.level is None else report.level.value)
    assert seen.name == (None if report.name is None else report.name.hex())
    assert seen.branch == (None if report.branch is None else report.branch.hex())
    assert abs(seen.saved_ms - report.saved_ms) <= 0.05
    assert seen.executed is (report.outcome in (Outcome.MISS, Outcome.BYPASS))


@pytest.mark.parametrize("wrapped", [lambda r: r, lambda r: SimpleNamespace(response=r), lambda r: r.headers])
def test_headers_are_found_where_they_are(wrapped: object) -> None:
    response = httpx2.Response(
        200, headers={"X-Dynbranch-Outcome": "hit", "x-dynbranch-saved-ms": "nonsense"}
    )
    seen = dynbranch.client.outcome(wrapped(response))  # type: ignore[operator]
    assert seen == dynbranch.client.Outcome("hit")


def test_an_error_of_an_sdk_has_one() -> None:
    request = httpx2.Request("POST", "http://gateway/v1/chat/completions")
    response = httpx2.Response(503, headers={"x-dynbranch-outcome": "miss"}, request=request)
    error = APIStatusError("no engine", response=response, body=None)
    assert dynbranch.client.outcome(error) == dynbranch.client.Outcome("miss")


def test_headers_may_be_a_plain_mapping_in_any_case() -> None:
    assert dynbranch.client.outcome({"X-DynBranch-Outcome": "miss"}) == dynbranch.client.Outcome("miss")


def test_another_server_says_nothing() -> None:
    assert dynbranch.client.outcome(httpx2.Response(200)) is None


def test_what_has_no_headers_is_told() -> None:
    with pytest.raises(TypeError, match="with_raw_response"):
        dynbranch.client.outcome(SimpleNamespace())


def test_outcomes_are_counted() -> None:
    outcomes = dynbranch.client.Outcomes()
    assert outcomes.last is None and outcomes.counts == {}
    for kind in ("miss", "hit", "hit"):
        outcomes.note(dynbranch.client.Outcome(kind))
    assert outcomes.last == dynbranch.client.Outcome("hit") and outcomes.counts == {"miss": 1, "hit": 2}
