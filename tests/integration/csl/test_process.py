"""The service as a process of its own: ready line, health, kill -9, restart, clean end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def service(data: Path, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("DYNBRANCH_", "OTEL_"))}
    environ.update(DYNBRANCH_CSL_LISTEN="127.0.0.1:0", DYNBRANCH_CSL_DATA_DIR=str(data), **settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynbranch.csl", stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        yield process, json.loads(line)["address"] if line else ""
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


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
async def test_acknowledged_writes_survive_kill_9(tmp_path: Path) -> None:
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


async def test_it_says_that_it_serves(tmp_path: Path) -> None:
    async with service(tmp_path) as (process, address), grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "dynbranch.v1.CslService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_second_process_on_the_same_directory_stops_with_a_reason(tmp_path: Path) -> None:
    async with service(tmp_path), service(tmp_path) as (second, address):
        assert address == ""
        assert await second.wait() != 0
    assert not (tmp_path / "quarantine").exists()


async def test_an_unknown_setting_stops_it(tmp_path: Path) -> None:
    async with service(tmp_path, DYNBRANCH_CSL_MAX_ENTRYS="7") as (process, address):
        assert address == ""
        assert await process.wait() == 2
