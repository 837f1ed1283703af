"""What no correct peer sends is refused at the door, with InvalidRequest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from dynbranch.domain.engine import AttachOrder, GenerationEvents
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import DemandId, Digest, GenerationId, LeaseId, Name, Version
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Demand,
    GenerationRef,
    Identity,
    Lease,
    Level,
    Miss,
    ReadScope,
)
from dynbranch.v1 import controller_pb2, csl_pb2, engine_agent_pb2, shared_pb2
from dynbranch.wire import controller, csl, engine_agent, shared

NAME = Name(b"n" * 32)
REF = GenerationRef(GenerationId(b"g" * 16), "127.0.0.1:1")
LEASE = Lease(LeaseId(b"l" * 16), NAME, REF, Version(1, 2), PURE)


def demand(change: Callable[[csl_pb2.DemandRequest], object]) -> csl_pb2.DemandRequest:
    message = csl.demand_out(Demand(DemandId(b"d" * 16), NAME, Identity(), PURE, REF))
    change(message)
    return message


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.ClearField("demand_id"),
        lambda m: setattr(m, "demand_id", b"x" * 65),
        lambda m: setattr(m, "name", b"n" * 31),
        lambda m: m.ClearField("scope"),
        lambda m: m.scope.sources.append("passages"),
        lambda m: m.scope.Clear(),
        lambda m: m.scope.CopyFrom(shared_pb2.ReadScope(sources=["a/b"])),
        lambda m: m.scope.CopyFrom(shared_pb2.ReadScope(declared=[shared_pb2.Read(record="no-slash")])),
        lambda m: m.ClearField("intended"),
        lambda m: m.input_digests.append(b"short"),
        lambda m: m.exclude_generations.append(b""),
    ],
)
def test_a_malformed_demand_is_refused(change: Callable[[csl_pb2.DemandRequest], object]) -> None:
    with pytest.raises(InvalidRequest):
        csl.demand_in(demand(change))


def lease_without_token() -> shared_pb2.Lease:
    message = shared.lease_out(LEASE)
    message.ClearField("read_token")
    return message


@pytest.mark.parametrize(
    "read",
    [
        lambda: csl.demand_outcome_in(csl_pb2.DemandResponse()),
        lambda: csl.demand_outcome_in(csl_pb2.DemandResponse(hit=csl_pb2.Hit())),
        lambda: csl.commit_in(csl_pb2.CommitRequest()),
        lambda: csl.commit_outcome_in(csl_pb2.CommitResponse()),
        lambda: csl.commit_outcome_in(csl_pb2.CommitResponse(refused=csl_pb2.CommitRefusal(reason="mood"))),
        lambda: csl.renew_in(csl_pb2.RenewLeasesRequest(lease_ids=[b""])),
        lambda: csl.write_in(csl_pb2.WriteRequest()),
        lambda: csl.write_in(csl_pb2.WriteRequest(records=["a/b", "a b/c"])),
        lambda: csl.inspect_in(csl_pb2.InspectRequest(name=b"n")),
        lambda: shared.lease_in(lease_without_token()),
        lambda: shared.read_in(shared_pb2.Read(record="a/b")),
        lambda: shared.level_in(shared_pb2.DETERMINISM_LEVEL_UNSPECIFIED),
        lambda: shared.number_in(float("nan"), "latency_ms"),
        lambda: engine_agent.description_in(engine_agent_pb2.DescribeResponse(kind="oracle")),
        lambda: engine_agent.order_in(engine_agent_pb2.GenerateRequest(generation_id=b"g")),
        lambda: engine_agent.events_in(
            engine_agent_pb2.GenerationEvents(end=engine_agent_pb2.GenerationEnd(execution_ms=1))
        ),
        lambda: engine_agent.attach_in(engine_agent_pb2.AttachRequest()),
        lambda: controller.batch_in(controller_pb2.ReportEventsRequest()),
        lambda: controller.batch_in(controller_pb2.ReportEventsRequest(reporter="r" * 300)),
        lambda: controller.event_in(controller_pb2.Event(at_unix_ms=1)),
    ],
)
def test_a_malformed_message_is_refused(read: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest):
        read()


def test_an_unknown_tool_freshness_or_protocol_is_refused() -> None:
    tool = engine_agent_pb2.ToolDescription(name="search", freshness="mostly")
    with pytest.raises(InvalidRequest):
        engine_agent.description_in(engine_agent_pb2.DescribeResponse(kind="tool", tools=[tool]))


def test_a_miss_without_a_lease_is_execute_without_store() -> None:
    assert csl.demand_outcome_in(csl.demand_outcome_out(Miss(None))) == Miss(None)


@pytest.mark.promise("I3")
def test_reads_that_nobody_told_are_the_whole_source() -> None:
    """An empty list would say "it read nothing", and the result would outlive a write."""
    lease = Lease(LeaseId(b"l"), NAME, REF, Version(1, 2), ReadScope(sources=("passages", "prices")))
    commit = Commit(lease, b"", Digest(b"d" * 32), Level.SOURCED, 1.0)
    assert csl.commit_in(csl.commit_out(commit)).reads == ("passages/*", "prices/*")


def test_a_tenant_that_was_not_told_is_the_default_one() -> None:
    assert shared.identity_in(shared_pb2.Identity(stage="plan")) == Identity(stage="plan")


def test_an_attach_waits_fifty_milliseconds_at_most() -> None:
    patient = AttachOrder(GenerationId(b"g"), 3, 9_000)
    assert engine_agent.attach_in(engine_agent.attach_out(patient)) == replace(patient, wait_ms=50)


def test_an_empty_message_of_events_is_a_keep_alive() -> None:
    assert engine_agent.followed_in(engine_agent_pb2.AttachResponse()) == GenerationEvents(0, ())
