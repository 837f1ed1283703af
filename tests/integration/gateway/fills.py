"""A workflow type with a template, and fills of its stages, begun as a controller begins them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from dynbranch.clients.ports import EngineAgent, Fills
from dynbranch.domain.branches import TemplateSource
from dynbranch.domain.engine import GenerationEvents, GenerationOrder, WireProtocol, WorkClass
from dynbranch.domain.events import ArrivalSeen, ChoiceSeen, GatewayEvent, OutcomeSeen
from dynbranch.domain.fills import BeginFill, FillGranted, Settlement
from dynbranch.domain.ids import BranchId, FillId, GenerationId, Name, TrialId
from dynbranch.domain.reuse import PURE, FillOrigin, GenerationRef, Identity, Lease, ReadScope
from dynbranch.engine_agent.fake import FAKE_MODEL
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.runtime.chance import new_id
from integration.gateway.world import MODEL, Answer, World, eventually

TEMPLATE = """
workflow_type: picks
version: 1
inputs:
  menu: {request: decide, path: '$.messages[0].content', regex: '^- (.*)$', every: true}
stages:
  decide:
    kind: chat
    request: |
      {"model":"fake-model","messages":[{"role":"user","content":"Pick one:
      {%- for item in menu %}\\n- {{ item | in_json }}{% endfor %}"}],"temperature":0}
  act:
    kind: chat
    speculable: yes
    request: |
      {"model":"fake-model","messages":[
        {"role":"user","content":"Do {{ selection | in_json }}"}],"temperature":0}
  draw:
    kind: chat
    speculable: once
    request: |
      {"model":"fake-model","messages":[
        {"role":"user","content":"Draw {{ selection | in_json }}"}],"temperature":1}
  search:
    kind: tool
    speculable: yes
    reads: source
    request: '{"query":{{ selection | json_compact }}}'
decision_points:
  pick:
    stage: decide
    window: decode
    branch: exclusive
    resolved_by: {output: decide, path: $.pick}
    opens: {arrival: decide}
    candidates:
      menu: {input: menu}
      predictors: [offer, history]
    then: [act]
"""

PICKS = TemplateSource("picks", TEMPLATE)
WORKFLOW = {
    "x-dynbranch-workflow-type": "picks",
    "x-dynbranch-workflow": "w1",
    "x-dynbranch-agent": "main",
}
IDENTITY = Identity(workflow_type_id="picks", workflow_id="w1", agent_id="main")
CALL = {"timeout_s": 20.0}


def request(text: str, **fields: Any) -> bytes:
    """As the template writes it, unless fields are added."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    return json.dumps(body, separators=(",", ":")).encode()


DECIDE = request("Pick one:\n- red\n- blue")
ACT = request("Do red")
DRAW = request("Draw red", temperature=1)


@dataclass
class RunningFill:
    lease: Lease
    events: AsyncGenerator[GenerationEvents]
    task: asyncio.Task[None]

    async def ended(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.task), 20)

    async def let_go(self) -> None:
        """As when the controller dies."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def origin(number: int = 1) -> FillOrigin:
    return FillOrigin(BranchId(b"b" * 16), TrialId(b"t" * 16), FillId(bytes([number]) * 16))


async def name_of(world: World, body: bytes) -> Name:
    explained = await world.post("/dynbranch/v1/explain", body, WORKFLOW)
    return Name(bytes.fromhex(explained.json["name"]))


async def granted(
    store: Fills,
    name: Name,
    *,
    number: int = 1,
    once: bool = False,
    scope: ReadScope = PURE,
    address: str = "model-a:1",
    traceparent: str = "",
) -> Lease:
    asked = BeginFill(
        origin=replace(origin(number), traceparent=traceparent),
        name=name,
        identity=IDENTITY,
        scope=scope,
        intended=GenerationRef(GenerationId(new_id()), address),
        once=once,
    )
    outcome = await store.begin_fill(asked, **CALL)
    assert isinstance(outcome, FillGranted), outcome
    return outcome.lease


def fill_order(lease: Lease, body: bytes) -> GenerationOrder:
    return GenerationOrder(
        generation_id=lease.generation.generation_id,
        protocol=WireProtocol.CHAT_COMPLETIONS,
        target=MODEL,
        body=body,
        fingerprint_digest=fingerprint_digest(FAKE_MODEL.fingerprint),
        identity=IDENTITY,
        lease=lease,
        detach_grace_ms=2000,
        work=WorkClass.FILL,
        quiet=True,
    )


@asynccontextmanager
async def running_fill(
    world: World,
    body: bytes,
    *,
    number: int = 1,
    once: bool = False,
    scope: ReadScope = PURE,
    traceparent: str = "",
) -> AsyncIterator[RunningFill]:
    """Within, a controller follows it; it may have ended."""
    name = await name_of(world, body)
    lease = await granted(
        world.csl.inner, name, number=number, once=once, scope=scope, traceparent=traceparent
    )
    agent: EngineAgent = world.agents["model-a:1"]
    events = agent.generate(fill_order(lease, body), idle_s=60)

    async def follow() -> None:
        async with aclosing(events):
            async for _ in events:
                pass

    running = RunningFill(lease, events, asyncio.get_running_loop().create_task(follow(), name="fill"))
    try:
        await eventually(lambda: world.engine.orders)
        yield running
    finally:
        await running.let_go()


async def settled(world: World) -> list[Settlement]:
    return list(
        await world.csl.inner.read_settlements(
            acknowledged_through=0, after=0, at_most=100, wait_ms=0, **CALL
        )
    )


async def templated(world: World, *templates: TemplateSource) -> None:
    """The templates are in force at the gateway."""
    world.controller.put_templates(*(templates or (PICKS,)))
    known = world.gateway.templates
    assert known is not None
    await eventually(lambda: all(known.of(one.workflow_type_id) for one in templates or (PICKS,)))


def told(world: World) -> list[GatewayEvent]:
    """Everything that the controller has been told."""
    return [event for batch in world.controller.batches for event in batch.events]


def told_arrivals(world: World) -> list[ArrivalSeen]:
    return [event for event in told(world) if isinstance(event, ArrivalSeen)]


def told_outcomes(world: World) -> list[OutcomeSeen]:
    return [event for event in told(world) if isinstance(event, OutcomeSeen)]


def told_choices(world: World) -> list[ChoiceSeen]:
    return [event for event in told(world) if isinstance(event, ChoiceSeen)]


async def serve(world: World, body: bytes, **headers: str) -> Answer:
    return await world.post("/v1/chat/completions", body, {**WORKFLOW, **headers})
