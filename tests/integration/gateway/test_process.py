"""The gateway as a process of its own: real gRPC to its peers, real signals, exported spans."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import aiohttp
import grpc
import pytest
from dynbranch.controller.branch_server import branch_service
from dynbranch.controller.core.journal import Journal
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.controller.server import service as controller_service
from dynbranch.controller.shell import ControllerShell
from dynbranch.controller.templates_in_force import Templates
from dynbranch.csl.fake import FakeCsl
from dynbranch.csl.server import SERVICE, CslServicer
from dynbranch.domain.ids import Digest, Name
from dynbranch.domain.reuse import Commit, Committed, Level
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine, text_chunks
from dynbranch.engine_agent.server import service as agent_service
from dynbranch.naming.chunks import encode_payload
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.v1.csl_pb2_grpc import add_CslServiceServicer_to_server
from integration.gateway.fills import granted
from integration.gateway.world import GREEDY, eventually
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from prometheus_client import CollectorRegistry

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
FILL_SPAN = "b7ad6b7169203331"
FILLED = "0af7651916cd43dd8448eb211c80319c"


class Receiver(otlp_grpc.TraceServiceServicer):
    """Keeps the spans that a process exports."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    async def Export(
        self, request: otlp.ExportTraceServiceRequest, context: object
    ) -> otlp.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    def attributes(self, span: Any) -> dict[str, Any]:
        return {fact.key: getattr(fact.value, fact.value.WhichOneof("value")) for fact in span.attributes}


@dataclass
class Peers:
    csl: FakeCsl
    engine: ScriptedEngine
    environ: dict[str, str]


@asynccontextmanager
async def served_peers() -> AsyncIterator[Peers]:
    """A store and an engine agent, each behind a real gRPC server."""
    clock = SystemClock()
    csl = FakeCsl(clock=clock, new_id=new_id)
    engine = ScriptedEngine(clock)
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(FakeEngineAgent(csl=csl, clock=clock, engine=engine))
        services = {
            "CSL": (add_CslServiceServicer_to_server, CslServicer(csl.shell), SERVICE),
            "AGENTS": agent_service(agent.agent),
        }
        environ = {}
        for name, service in services.items():
            server = GrpcServer("127.0.0.1:0", [service], clock)
            environ[f"DYNBRANCH_GATEWAY_{name}"] = await server.start()
            stack.push_async_callback(server.stop, 0)
        yield Peers(csl, engine, environ)


@asynccontextmanager
async def gateway(**environ: str) -> AsyncIterator[Process]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DYNBRANCH_", "OTEL_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dynbranch.gateway",
        env={**clean, "DYNBRANCH_GATEWAY_LISTEN": "127.0.0.1:0", **environ},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def address_of(process: Process) -> str:
    assert process.stdout is not None
    line = json.loads(await process.stdout.readline())
    assert line["service"] == "gateway"
    return f"http://{line['address']}"


async def until_ready(http: aiohttp.ClientSession, url: str) -> None:
    async def ready() -> bool:
        async with http.get(f"{url}/readyz") as response:
            return response.status == 200

    await eventually(ready)


async def test_one_trace_leads_from_the_caller_through_the_demand_to_the_generation() -> None:
    receiver = Receiver()
    collector = grpc.aio.server()
    otlp_grpc.add_TraceServiceServicer_to_server(receiver, collector)
    port = collector.add_insecure_port("127.0.0.1:0")
    await collector.start()
    async with served_peers() as peers, aiohttp.ClientSession() as http:
        environ = {**peers.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        async with gateway(**environ) as process:
            url = await address_of(process)
            await until_ready(http, url)
            headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-dynbranch-workflow": "w1"}
            outcomes = []
            for _ in range(2):
                async with http.post(f"{url}/v1/chat/completions", json=GREEDY, headers=headers) as response:
                    outcomes.append(response.headers["x-dynbranch-outcome"])
                    assert (await response.json())["choices"][0]["message"]["content"] == "Hello there"
            assert outcomes == ["miss", "hit"]
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    await collector.stop(0)
    spans = [span for span in receiver.spans if span.trace_id.hex() == TRACE]
    arrivals = [span for span in spans if span.name == "arrival"]
    assert [span.name for span in spans].count("csl.demand") == 2
    assert [span.name for span in spans].count("generate") == 1
    assert {span.parent_span_id.hex() for span in arrivals} == {CALLER}
    inner = [span for span in spans if span.name != "arrival"]
    assert {span.parent_span_id for span in inner} <= {span.span_id for span in arrivals}
    facts = [receiver.attributes(span) for span in arrivals]
    assert {fact["dynbranch.outcome"] for fact in facts} == {"miss", "hit"}
    assert {fact["gen_ai.request.model"] for fact in facts} == {"fake-model"}
    assert {fact["gen_ai.usage.output_tokens"] for fact in facts} == {2}
    assert {fact["dynbranch.workflow.id"] for fact in facts} == {"w1"}


@pytest.mark.parametrize("told", [True, False], ids=["its span is told", "only its execution is"])
async def test_a_promotion_links_to_the_fill_that_ran_for_nobody(told: bool) -> None:
    receiver = Receiver()
    collector = grpc.aio.server()
    otlp_grpc.add_TraceServiceServicer_to_server(receiver, collector)
    port = collector.add_insecure_port("127.0.0.1:0")
    await collector.start()
    async with served_peers() as peers, aiohttp.ClientSession() as http:
        environ = {**peers.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        async with gateway(**environ) as process:
            url = await address_of(process)
            await until_ready(http, url)
            async with http.post(f"{url}/dynbranch/v1/explain", json=GREEDY) as response:
                name = Name(bytes.fromhex((await response.json())["name"]))
            span = f"00-{FILLED}-{FILL_SPAN}-01" if told else ""
            lease = await granted(peers.csl, name, traceparent=span)
            payload = encode_payload(text_chunks(("prepared",)), f"00-{FILLED}-{CALLER}-01")
            commit = Commit(lease, payload, Digest(sha256(payload).digest()), Level.GREEDY, 5.0)
            assert isinstance(await peers.csl.commit(commit, timeout_s=20), Committed)
            headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
            async with http.post(f"{url}/v1/chat/completions", json=GREEDY, headers=headers) as response:
                assert response.headers["x-dynbranch-outcome"] == "promoted"
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    await collector.stop(0)
    [arrival] = [span for span in receiver.spans if span.name == "arrival" and span.trace_id.hex() == TRACE]
    [promotion] = [span for span in receiver.spans if span.name == "promotion"]
    assert promotion.parent_span_id == arrival.span_id and not arrival.links
    assert [link.trace_id.hex() for link in promotion.links] == [FILLED]
    assert promotion.links[0].span_id.hex() == (FILL_SPAN if told else CALLER)
    facts = receiver.attributes(promotion)
    assert facts["dynbranch.branch_id"] == (b"b" * 16).hex() and facts["dynbranch.fill_stage"] == 0


async def test_a_terminated_gateway_finishes_what_it_has() -> None:
    async with served_peers() as peers, aiohttp.ClientSession() as http:
        gate = asyncio.Event()
        peers.engine.writer = lambda order: Script(gate=gate)
        async with gateway(**peers.environ) as process:
            url = await address_of(process)
            await until_ready(http, url)
            asked = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=GREEDY))
            await eventually(lambda: peers.engine.running)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            gate.set()
            response = await asked
            assert response.status == 200
            await response.read()
            assert await process.wait() == 0
        assert (await peers.csl.stats(timeout_s=1)).leases == 0


async def test_a_gateway_killed_in_the_middle_leaves_nothing_running() -> None:
    async with served_peers() as peers, aiohttp.ClientSession() as http:
        peers.engine.writer = lambda order: Script(gate=asyncio.Event())
        async with gateway(**peers.environ) as process:
            url = await address_of(process)
            await until_ready(http, url)
            asked = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=GREEDY))
            await eventually(lambda: peers.engine.running)
            process.kill()
            with pytest.raises(aiohttp.ClientError):
                await asked
            await eventually(lambda: not peers.engine.running)

            async def no_lease() -> bool:
                return (await peers.csl.stats(timeout_s=1)).leases == 0

            await eventually(no_lease)


async def test_a_controller_over_the_wire_hears_of_the_arrival() -> None:
    shell = ControllerShell(Journal(), SystemClock(), ControllerMetrics(CollectorRegistry()))
    services = [controller_service(shell), branch_service(Templates(None, SystemClock()), None)]
    server = GrpcServer("127.0.0.1:0", services, SystemClock())
    address = await server.start()
    async with AsyncExitStack() as stack:
        peers = await stack.enter_async_context(served_peers())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        environ = {**peers.environ, "DYNBRANCH_GATEWAY_CONTROLLER": address}
        process = await stack.enter_async_context(gateway(**environ))
        url = await address_of(process)
        await until_ready(http, url)
        async with http.post(f"{url}/v1/chat/completions", json=GREEDY) as response:
            assert response.status == 200
        await eventually(lambda: dict(shell.summary().outcomes) == {"miss": 1})
        process.terminate()
        assert await process.wait() == 0
    await server.stop(0)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"DYNBRANCH_GATEWAY_AGENT": "a:1"}, "DYNBRANCH_GATEWAY_AGENTS"),
        ({"DYNBRANCH_GATEWAY_REUSE": "always"}, "DYNBRANCH_GATEWAY_REUSE"),
        ({"DYNBRANCH_GATEWAY_TENANTS": "/nowhere.toml"}, "DYNBRANCH_GATEWAY_TENANTS"),
        ({"DYNBRANCH_GATEWAY_LISTEN": "nonsense"}, "DYNBRANCH_GATEWAY_LISTEN"),
    ],
)
async def test_a_wrong_setting_stops_the_start(environ: dict[str, str], named: str) -> None:
    async with gateway(**environ) as process:
        _, complaint = await process.communicate()
    assert process.returncode == 2
    assert named in complaint.decode()
