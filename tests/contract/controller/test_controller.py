"""The in-memory controller and the served one keep the same promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from dynbranch.clients.controller import GrpcController
from dynbranch.clients.ports import Controller, Unreachable
from dynbranch.controller.core.journal import Journal
from dynbranch.controller.fake import FakeController
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.controller.server import service
from dynbranch.controller.shell import ControllerShell
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.events import ArrivalSeen, ControllerSummary, EventBatch, GatewayEvent, OutcomeSeen
from dynbranch.domain.ids import DemandId, Name, UnixMs
from dynbranch.domain.reuse import Identity
from dynbranch.runtime.clock import ManualClock
from dynbranch.runtime.server import GrpcServer
from prometheus_client import CollectorRegistry

DEMAND = DemandId(b"d" * 16)
TIMEOUT_S = 20.0


@pytest_asyncio.fixture(params=["fake", "grpc"])
async def controller(request: pytest.FixtureRequest) -> AsyncIterator[Controller]:
    if request.param == "fake":
        yield FakeController()
        return
    clock = ManualClock()
    shell = ControllerShell(Journal(), clock, ControllerMetrics(CollectorRegistry()))
    server = GrpcServer("127.0.0.1:0", [service(shell)], clock)
    client = GrpcController(await server.start())
    yield client
    await client.close()
    await server.stop(0)


def arrival(workflow: str = "w", name: Name | None = None) -> ArrivalSeen:
    return ArrivalSeen(UnixMs(1), DEMAND, Identity(workflow_id=workflow), "chat", name, streaming=False)


def outcome(kind: str) -> OutcomeSeen:
    return OutcomeSeen(UnixMs(2), DEMAND, kind, latency_ms=10.0, saved_ms=4.0)


async def report(controller: Controller, first: int, *events: GatewayEvent) -> int:
    return await controller.report_events(EventBatch("g1", first, events), timeout_s=TIMEOUT_S)


async def test_a_new_controller_has_seen_nothing(controller: Controller) -> None:
    assert await controller.summary(timeout_s=TIMEOUT_S) == ControllerSummary()


async def test_it_sums_up_what_it_was_told(controller: Controller) -> None:
    assert await report(controller, 0, arrival(name=Name(b"n" * 32)), outcome("hit"), arrival("v")) == 3
    assert await report(controller, 3, outcome("miss"), outcome("hit")) == 2
    assert await controller.summary(timeout_s=TIMEOUT_S) == ControllerSummary(
        arrivals=2, outcomes=(("hit", 2), ("miss", 1)), saved_ms=12.0, workflows=2
    )


async def test_it_recognises_what_came_twice_and_counts_what_never_came(controller: Controller) -> None:
    assert await report(controller, 0, arrival(), arrival()) == 2
    assert await report(controller, 1, arrival(), arrival()) == 1
    assert await report(controller, 9, arrival()) == 1
    summary = await controller.summary(timeout_s=TIMEOUT_S)
    assert (summary.arrivals, summary.duplicates, summary.lost) == (4, 1, 6)


async def test_it_refuses_a_batch_that_nobody_sent(controller: Controller) -> None:
    with pytest.raises(InvalidRequest):
        await controller.report_events(EventBatch("", 0, (arrival(),)), timeout_s=TIMEOUT_S)
    assert await controller.summary(timeout_s=TIMEOUT_S) == ControllerSummary()


async def test_a_closed_client_reaches_nobody(controller: Controller) -> None:
    await controller.close()
    with pytest.raises(Unreachable):
        await controller.summary(timeout_s=TIMEOUT_S)
