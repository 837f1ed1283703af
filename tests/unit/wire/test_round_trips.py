"""domain → message → bytes → message → domain gives the same value back, for everything that travels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from dynbranch.domain import errors, reuse
from dynbranch.domain.ids import BranchId, FillId, TrialId
from dynbranch.runtime.error_status import error_of, status_of
from dynbranch.wire import controller, csl, engine_agent, fills, shared
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.wire import values

Codec = Callable[[Any], Any]

CODECS: dict[str, tuple[st.SearchStrategy[Any], Codec, Codec]] = {
    "version": (values.versions, shared.version_out, shared.version_in),
    "read": (values.reads, shared.read_out, shared.read_in),
    "declared": (values.declared, shared.declared_out, shared.declared_in),
    "incarnation": (values.incarnations, shared.incarnation_out, shared.incarnation_in),
    "identity": (values.identities, shared.identity_out, shared.identity_in),
    "scope": (values.scopes, shared.scope_out, shared.scope_in),
    "generation": (values.generations, shared.generation_out, shared.generation_in),
    "lease": (values.leases, shared.lease_out, shared.lease_in),
    "demand": (values.demands, csl.demand_out, csl.demand_in),
    "demand_outcome": (values.demand_outcomes, csl.demand_outcome_out, csl.demand_outcome_in),
    "commit": (values.commits(), csl.commit_out, csl.commit_in),
    "commit_outcome": (values.commit_outcomes, csl.commit_outcome_out, csl.commit_outcome_in),
    "origin": (values.origins, shared.origin_out, shared.origin_in),
    "begin_fill": (values.begun_fills, fills.begin_out, fills.begin_in),
    "fill_outcome": (values.fill_outcomes, fills.outcome_out, fills.outcome_in),
    "discard_fills": (values.discards, fills.discard_out, fills.discard_in),
    "discarded": (values.discarded, fills.discarded_out, fills.discarded_in),
    "settlements": (values.several(values.settlements), fills.settlements_out, fills.settlements_in),
    "renew": (
        st.tuples(values.several(values.ids), values.u32),
        lambda value: csl.renew_out(*value),
        csl.renew_in,
    ),
    "unknown_leases": (
        st.frozensets(values.ids, max_size=3),
        csl.unknown_leases_out,
        csl.unknown_leases_in,
    ),
    "release": (values.several(values.ids), csl.release_out, csl.release_in),
    "write": (
        st.tuples(values.several(values.records, min_size=1), values.words),
        lambda value: csl.write_out(*value),
        csl.write_in,
    ),
    "write_result": (values.write_results, csl.write_result_out, csl.write_result_in),
    "inspect": (values.digests, csl.inspect_out, csl.inspect_in),
    "inspection": (values.inspections, csl.inspection_out, csl.inspection_in),
    "stats": (values.stats, csl.stats_out, csl.stats_in),
    "description": (values.descriptions, engine_agent.description_out, engine_agent.description_in),
    "order": (values.orders, engine_agent.order_out, engine_agent.order_in),
    "attach": (values.attach_orders, engine_agent.attach_out, engine_agent.attach_in),
    "generated": (values.generation_events, engine_agent.generated_out, engine_agent.followed_in),
    "attached": (values.generation_events, engine_agent.attached_out, engine_agent.followed_in),
    "abort": (
        values.abort_orders,
        lambda order: engine_agent.abort_out(
            order.generation_id, order.reason, only_speculative=order.only_speculative
        ),
        engine_agent.abort_in,
    ),
    "aborted": (values.abort_results, engine_agent.aborted_out, engine_agent.aborted_in),
    "drain": (
        st.integers(0, 1000).map(lambda ms: ms / 1000),
        engine_agent.drain_out,
        engine_agent.drain_in,
    ),
    "occupancy": (values.occupancies, engine_agent.occupancy_out, engine_agent.occupancy_in),
    "batch": (values.batches, controller.batch_out, controller.batch_in),
    "templates": (values.template_sets, controller.templates_out, controller.templates_in),
    "branches": (
        values.several(values.branch_summaries),
        controller.branches_out,
        controller.branches_in,
    ),
    "summary": (values.summaries, controller.summary_out, controller.summary_in),
}


@pytest.mark.parametrize("name", CODECS)
def test_a_value_comes_back_as_it_went(name: str) -> None:
    strategy, out, back = CODECS[name]

    @settings(max_examples=40, deadline=None)
    @given(strategy)
    def travels(value: Any) -> None:
        message = out(value)
        arrived = type(message).FromString(message.SerializeToString())
        assert back(arrived) == value

    travels()


KINDS = [errors.NotFound, errors.NotReady, errors.Conflict, errors.InvalidRequest, errors.StoreFailed]


@given(st.sampled_from(KINDS), values.words, values.words, values.words, values.facts)
def test_an_error_comes_back_as_it_went(
    kind: type[errors.DomainError],
    reason: str,
    message: str,
    advice: str,
    facts: tuple[tuple[str, str], ...],
) -> None:
    status = status_of(kind(reason, message, advice=advice, facts=dict(facts)))
    back = error_of(type(status).FromString(status.SerializeToString()))
    assert type(back) is kind
    assert (back.reason, back.message, back.advice, back.facts) == (reason, message, advice, dict(facts))


def test_a_status_without_detail_or_of_another_kind_is_no_domain_error() -> None:
    status = status_of(errors.NotFound("a", "b"))
    del status.details[:]
    assert error_of(status) is None
    assert error_of(status_of(errors.DomainError("a", "b"))) is None


def test_the_span_of_a_fill_travels_though_it_tells_no_fill_from_another() -> None:
    origin = reuse.FillOrigin(BranchId(b"b"), TrialId(b"t"), FillId(b"f"), 1, traceparent="00-trace-span-01")
    assert shared.origin_in(shared.origin_out(origin)).traceparent == "00-trace-span-01"
    assert origin == replace(origin, traceparent="")
    assert shared.traceparent_in("0" * 200) == ""
