"""Opt-outs, identity and declared reads."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import RecordId, Version
from dynbranch.domain.reuse import PURE, DeclaredRead
from dynbranch.gateway.core.request_headers import (
    OptOuts,
    parse_identity,
    parse_opt_outs,
    parse_read_scope,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", OptOuts()),
        ("no-cache", OptOuts(may_hit=False)),
        ("No-Store", OptOuts(may_hit=False, may_store=False)),
        ("max-age=0, no-cache", OptOuts(may_hit=False)),
        ("no-cached", OptOuts()),
    ],
)
def test_cache_control(value: str, expected: OptOuts) -> None:
    assert parse_opt_outs({"cache-control": value}) == expected


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_bypass(value: str, expected: bool) -> None:
    assert parse_opt_outs({"x-dynbranch-bypass": value}).bypass is expected


def test_identity_is_taken_as_it_is() -> None:
    headers = {"x-dynbranch-workflow": " w1 ", "x-dynbranch-agent": "a", "x-dynbranch-stage": "s"}
    identity = parse_identity(headers, "t")
    assert (identity.tenant, identity.workflow_id, identity.agent_id, identity.stage) == ("t", "w1", "a", "s")
    assert identity.workflow_type_id == ""


@pytest.mark.parametrize("value", ["x" * 257, "caf\xe9", "tab\there"])
def test_a_wild_identity_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_identity({"x-dynbranch-agent": value}, "t")


def test_no_header_is_a_pure_stage() -> None:
    assert parse_read_scope({}) == PURE


def test_reads_with_and_without_versions() -> None:
    scope = parse_read_scope({"x-dynbranch-reads": "s/a=1.7, s/b ,s/%C3%A9%2C"})
    assert scope.declared == (
        DeclaredRead(RecordId("s/a"), Version(1, 7)),
        DeclaredRead(RecordId("s/b")),
        DeclaredRead(RecordId("s/é,")),
    )


def test_of_two_versions_of_a_record_the_one_that_promises_less_counts() -> None:
    scope = parse_read_scope({"x-dynbranch-reads": "s/a=1.7,s/a=1.3,s/b,s/b=1.1"})
    assert scope.declared == (
        DeclaredRead(RecordId("s/a"), Version(1, 3)),
        DeclaredRead(RecordId("s/b")),
    )


@pytest.mark.parametrize("value", ["noslash", "s/", "s/a=x", "s/a=1", "s /a", "s/%ff", "s/a=1.2.3"])
def test_malformed_reads_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_read_scope({"x-dynbranch-reads": value})


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50))
def test_any_key_survives_percent_encoding(key: str) -> None:
    scope = parse_read_scope({"x-dynbranch-reads": quote(f"s/{key}", safe="/")})
    assert [read.record for read in scope.declared] == [f"s/{key}"]
