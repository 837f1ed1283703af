"""The life of a service process: ready line, drain, crash, wrong settings, metrics, exported traces."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.clients.ports import Unreachable
from dynbranch.domain.ids import GenerationId
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

PROBE = Path(__file__).with_name("probe.py")
TESTS = PROBE.parents[2]


@asynccontextmanager
async def probe(*arguments: str, **environ: str) -> AsyncIterator[Process]:
    """The probe as a process of its own; it is gone when the block is left."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DYNBRANCH_", "OTEL_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROBE),
        *arguments,
        env={**clean, "PYTHONPATH": str(TESTS), **environ},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(process: Process) -> str:
    assert process.stdout is not None
    line = json.loads(await process.stdout.readline())
    assert line.keys() == {"service", "address"}
    assert line["service"] == "probe"
    return str(line["address"])


def free_port() -> int:
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return int(probing.getsockname()[1])


async def waiting_call(client: GrpcEngineAgent) -> asyncio.Task[bool]:
    """A call that the service has and that it will not end before it is told to stop."""
    call = asyncio.create_task(client.abort(GenerationId(b"g"), reason="wait", timeout_s=60))
    while True:
        if (await client.describe(timeout_s=30)).slots:
            return call
        await asyncio.sleep(0.01)


async def refusing(client: GrpcEngineAgent) -> None:
    """Return when the service takes no new calls."""
    with pytest.raises(Unreachable):
        while True:
            await client.describe(timeout_s=30)
            await asyncio.sleep(0.01)


async def test_a_terminated_service_finishes_what_it_has_and_refuses_the_rest() -> None:
    async with probe() as process:
        client = GrpcEngineAgent(await ready(process))
        call = await waiting_call(client)
        process.send_signal(signal.SIGTERM)
        assert await call
        assert await process.wait() == 0
        with pytest.raises(Unreachable):
            await client.describe(timeout_s=30)
        await client.close()


async def test_a_second_signal_does_not_wait_for_the_drain() -> None:
    async with probe("stuck") as process:
        client = GrpcEngineAgent(await ready(process))
        call = await waiting_call(client)
        process.send_signal(signal.SIGINT)
        await refusing(client)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 1
        with pytest.raises(Unreachable):
            await call
        await client.close()


async def test_a_crashed_task_ends_the_process_with_a_logged_error() -> None:
    async with probe("crash") as process:
        await ready(process)
        assert process.stderr is not None
        lines = [json.loads(line) for line in (await process.stderr.read()).splitlines()]
        assert await process.wait() == 1
    assert [line["message"] for line in lines] == ["task bomb crashed", "crashed"]
    assert all("boom" in line["error"] for line in lines)


@pytest.mark.parametrize("environ", [{"DYNBRANCH_LOG_LEVEL": "loud"}, {"DYNBRANCH_METRICS_PORT": "metrics"}])
async def test_a_wrong_setting_ends_the_process_with_one_line(environ: dict[str, str]) -> None:
    async with probe(**environ) as process:
        _, complaint = await process.communicate()
        assert process.returncode == 2
    (name,) = environ
    assert complaint.decode().startswith(f"probe: {name}: ")
    assert len(complaint.splitlines()) == 1


async def test_metrics_are_served_where_asked() -> None:
    port = free_port()
    async with probe(DYNBRANCH_METRICS_PORT=str(port)) as process:
        await ready(process)

        def scrape() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
                return str(page.read().decode())

        assert "python_info" in await asyncio.to_thread(scrape)
        process.terminate()
        assert await process.wait() == 0


class Receiver(otlp_grpc.TraceServiceServicer):
    """Keeps the spans that a process exports."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self.spans: list[str] = []

    async def Export(
        self, request: otlp.ExportTraceServiceRequest, context: object
    ) -> otlp.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            facts = {fact.key: fact.value.string_value for fact in resource.resource.attributes}
            self.services.add(facts["service.name"])
            self.spans += [span.name for scope in resource.scope_spans for span in scope.spans]
        return otlp.ExportTraceServiceResponse()


async def test_spans_are_exported_before_the_process_ends() -> None:
    receiver = Receiver()
    server = grpc.aio.server()
    otlp_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with probe(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}") as process:
        client = GrpcEngineAgent(await ready(process))
        description = await client.describe(timeout_s=30)
        await client.close()
        process.terminate()
        assert await process.wait() == 0
    await server.stop(0)
    assert receiver.services == {"dynbranch-probe"}
    assert receiver.spans == ["csl.demand"]
    assert int(description.bypass_url, 16) != 0
