"""The service as a process of its own: ready line, health, kill -9, restart, clean end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import pytest
from dynbranch.clients.csl import GrpcCsl
from dynbranch.csl.fake import digest, name_of
from dynbranch.domain.ids import DemandId, GenerationId, RecordId
from dynbranch.domain.reuse import (
    Commit,
    Committed,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Level,
    Miss,
    ReadScope,
)
from dynbranch.runtime.chance import new_id
from grpc_health.v1 import health_pb2, health_pb2_grpc

StartService = Callable[..., AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]]


async def put(csl: GrpcCsl, what: str, record: str) -> None:
    outcome = await csl.demand(a_demand(what), timeout_s=10)
    assert isinstance(outcome, Miss) and outcome.lease is not None
    commit = Commit(
        lease=outcome.lease,
        payload=what.encode(),
        payload_digest=digest(what),
        level=Level.SOURCED,
        execution_ms=1.0,
        reads=(RecordId(record),),
    )
    assert isinstance(await csl.commit(commit, timeout_s=10), Committed)


def a_demand(what: str) -> Demand:
    return Demand(
        demand_id=DemandId(new_id()),
        name=name_of(what),
        identity=Identity(),
        scope=ReadScope(sources=("docs",)),
        intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
    )


@pytest.mark.promise("I3")
async def test_acknowledged_writes_survive_kill_9(tmp_path: Path, service: StartService) -> None:
    async with service(tmp_path) as (process, address):
        csl = GrpcCsl(address)
        await put(csl, "kept", "docs/1")
        await put(csl, "gone", "docs/2")
        await csl.write([RecordId("docs/2")], reporter="test", timeout_s=10)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await csl.close()
    async with service(tmp_path) as (process, address):
        csl = GrpcCsl(address)
        assert isinstance(await csl.demand(a_demand("kept"), timeout_s=10), Hit)
        assert isinstance(await csl.demand(a_demand("gone"), timeout_s=10), Miss)
        await csl.close()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_it_says_that_it_serves(tmp_path: Path, service: StartService) -> None:
    async with service(tmp_path) as (process, address), grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "dynbranch.v1.CslService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_second_process_on_the_same_directory_stops_with_a_reason(
    tmp_path: Path, service: StartService
) -> None:
    async with service(tmp_path), service(tmp_path) as (second, address):
        assert address == ""
        assert await second.wait() != 0
    assert not (tmp_path / "quarantine").exists()


async def test_an_unknown_setting_stops_it(tmp_path: Path, service: StartService) -> None:
    async with service(tmp_path, DYNBRANCH_CSL_MAX_ENTRYS="7") as (process, address):
        assert address == ""
        assert await process.wait() == 2
