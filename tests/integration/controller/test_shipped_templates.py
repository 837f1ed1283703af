"""The demo's workflows through a gateway, with the templates that ship: what runs ahead has the very names
that the harness then demands, and changes no answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dynbranch.clients.ports import EngineAgent
from dynbranch.controller.agents import Agents
from dynbranch.controller.branch_metrics import BranchMetrics
from dynbranch.controller.branching import Branching
from dynbranch.controller.core.branches.admission import Always
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.journal import Journal
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.controller.predicting import registered
from dynbranch.controller.predictor_metrics import PredictorMetrics
from dynbranch.controller.preparing import Preparer
from dynbranch.controller.running import Runner
from dynbranch.controller.shell import ControllerShell
from dynbranch.controller.templates_in_force import Foretelling, Templates
from dynbranch.csl.fake import FakeCsl
from dynbranch.demo.flows import MENUS, REACT, ROUTING_CHAIN, SUB_AGENTS, Ask
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.records import passages
from dynbranch.demo.rehearsal import Performance, answer, model_says, performances
from dynbranch.domain.branches import BranchSummary, TemplateSet
from dynbranch.domain.engine import AgentKind, Freshness, GenerationOrder, ToolDescription
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.domain.ids import BranchId, RecordId
from dynbranch.domain.reuse import Fingerprint, Level
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine, text_chunks
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.tenants import Tenants
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from integration.gateway.world import eventually, serving_gateway
from prometheus_client import CollectorRegistry

DECIDING = ("route", "think", "plan")
SLOW_S = 0.3
RECORDS = 2


@dataclass
class LocalController:
    """The controller's own shell behind the ports that a gateway calls."""

    shell: ControllerShell
    branching: Branching

    async def report_events(self, batch: EventBatch, *, timeout_s: float) -> int:
        return self.shell.report_events(batch)

    async def summary(self, *, timeout_s: float) -> ControllerSummary:
        return self.shell.summary()

    def watch_templates(self) -> AsyncGenerator[TemplateSet]:
        return self.branching.templates.watch()

    async def inspect_branch(self, branch: BranchId, *, timeout_s: float) -> str:
        return json.dumps(self.branching.inspect(branch))

    async def list_branches(
        self, *, workflow_id: str, at_most: int, timeout_s: float
    ) -> tuple[BranchSummary, ...]:
        return self.branching.listed(workflow_id, at_most)

    async def close(self) -> None:
        pass


@dataclass
class Stack:
    http: aiohttp.ClientSession
    url: str
    gateway: Gateway
    csl: FakeCsl
    engine: ScriptedEngine
    branching: Branching | None
    outcomes: Counter[str] = field(default_factory=Counter)

    async def perform(self, performance: Performance) -> list[str]:
        """What the harness was answered, in order."""
        texts: list[str] = []
        try:
            ask = next(performance.flow)
            while True:
                texts.append(await self._ask(performance, ask))
                ask = performance.flow.send(texts[-1])
        except StopIteration:
            return texts

    async def _ask(self, performance: Performance, ask: Ask) -> str:
        if ask.waits:
            await asyncio.sleep(SLOW_S)
        headers = {
            "x-dynbranch-workflow-type": performance.workflow_type,
            "x-dynbranch-workflow": performance.record,
            "x-dynbranch-agent": ask.agent,
            "x-dynbranch-stage": ask.stage,
            "content-type": "application/json",
        }
        if ask.reads:
            headers["x-dynbranch-reads"] = ",".join(ask.reads)
        path = "/v1/chat/completions" if ask.kind == "chat" else f"/dynbranch/v1/tools/{ask.target}"
        async with self.http.post(self.url + path, data=ask.body, headers=headers) as response:
            body = await response.read()
            assert response.status == 200, body
            self.outcomes[response.headers.get("x-dynbranch-outcome", "")] += 1
        return _text(body) if ask.kind == "chat" else body.decode()


def _text(body: bytes) -> str:
    if not body.startswith(b"data:"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


def says(asked: dict[str, Any]) -> str:
    """The rehearsal's model, but one that goes two steps, and looks up names that it has read."""
    said = model_says(asked)
    form = asked.get("response_format", {}).get("json_schema", {}).get("name", "")
    if form not in DECIDING:
        return said
    steps = (len(asked["messages"]) - 2) // 2
    decided = json.loads(said)
    decided |= {"more": steps == 0} if form == "route" else {}
    decided |= {"enough": steps > 0} if form == "plan" else {}
    if form == "think":
        names = re.findall(r"[A-Z][a-z]+(?: [A-Z][a-z]+)+", asked["messages"][1]["content"]) or ["Nobody"]
        decided |= {"entity": names[min(steps, len(names) - 1)], "finish": steps > 0}
    return json.dumps({name: decided[name] for name in json.loads(said)})


def chat_script(order: GenerationOrder) -> Script:
    asked = json.loads(order.body)
    form = asked.get("response_format", {}).get("json_schema", {}).get("name", "")
    text = says(asked)
    pieces = [text[at : at + 8] for at in range(0, len(text), 8)]
    slow = SLOW_S / max(1, len(pieces)) if form in DECIDING else 0.0
    return Script(text_chunks(pieces), between_s=slow)


def tool_script(store: PassageStore, order: GenerationOrder) -> Script:
    ask = Ask(order.target, "tool", order.target, order.body)
    text = answer(ask, store)
    read = json.loads(order.body).get("id")
    reads = (RecordId(f"passages/{read}" if read else "passages/*"),)
    return Script((text.encode(),), reads=reads)


def tool(name: str) -> ToolDescription:
    known = Fingerprint((("tool", name),), Level.SOURCED)
    return ToolDescription(name, known, "passages", Freshness.WRITES_REPORTED)


@asynccontextmanager
async def stack(folder: Path, *, ahead: bool) -> AsyncIterator[Stack]:
    clock = SystemClock()
    async with AsyncExitStack() as exits:
        store = PassageStore(folder / "passages.sqlite")
        exits.callback(store.close)
        store.load(passages())
        csl = FakeCsl(clock=clock, new_id=new_id)
        engine = ScriptedEngine(clock, chat_script, slots=16)
        tools = ScriptedEngine(
            clock,
            lambda order: tool_script(store, order),
            models=(),
            tools=(tool("search"), tool("get")),
            kind=AgentKind.TOOL,
            slots=16,
        )
        agents: dict[str, EngineAgent] = {
            "chat:1": await exits.enter_async_context(FakeEngineAgent(csl=csl, clock=clock, engine=engine)),
            "tools:1": await exits.enter_async_context(FakeEngineAgent(csl=csl, clock=clock, engine=tools)),
        }
        controller = await _controller(csl, agents, clock, exits) if ahead else None
        settings = GatewaySettings(agents=tuple(agents), stop_grace_s=1, occupancy_interval_ms=50)
        peers = Peers(csl, controller, agents.__getitem__, controller)
        gateway, url = await exits.enter_async_context(serving_gateway(settings, peers, Tenants()))
        http = await exits.enter_async_context(aiohttp.ClientSession())
        await eventually(lambda: not gateway.readiness.missing())
        if controller is not None:
            templates = gateway.templates
            assert templates is not None
            kinds = (ROUTING_CHAIN, REACT, SUB_AGENTS, MENUS)
            await eventually(lambda: all(templates.of(kind) for kind in kinds))
        yield Stack(http, url, gateway, csl, engine, controller.branching if controller else None)


async def _controller(
    csl: FakeCsl, agents: dict[str, EngineAgent], clock: SystemClock, exits: AsyncExitStack
) -> LocalController:
    folder = exits.enter_context(as_file(files("dynbranch.demo").joinpath("templates")))
    templates = Templates(folder, clock)
    await templates.look()
    known = Agents(agents, agents.__getitem__, clock=clock, interval_ms=20)
    registry = CollectorRegistry()
    branching = await exits.enter_async_context(
        Branching(
            BranchBook(Always(3)),
            store=csl,
            runner=Runner(csl, known, clock, new_id=new_id),
            preparer=Preparer(known),
            agents=known,
            templates=templates,
            foretelling=Foretelling(registered(()), clock, PredictorMetrics(registry), deadline_ms=1000.0),
            metrics=BranchMetrics(registry),
            clock=clock,
        )
    )
    shell = ControllerShell(Journal(), clock, ControllerMetrics(registry), branching)
    return LocalController(shell, branching)


def chosen(workflow_type: str) -> list[Performance]:
    found = [one for one in performances("fake-model") if one.workflow_type == workflow_type]
    return found[:RECORDS]


@pytest.mark.promise("I1", "I5")
@pytest.mark.parametrize("workflow_type", [ROUTING_CHAIN, REACT, SUB_AGENTS, MENUS])
async def test_what_runs_ahead_is_demanded_and_changes_no_answer(workflow_type: str, tmp_path: Path) -> None:
    async with stack(tmp_path / "plain", ahead=False) as plain:
        expected = [await plain.perform(one) for one in chosen(workflow_type)]
    async with stack(tmp_path / "ahead", ahead=True) as there:
        assert [await there.perform(one) for one in chosen(workflow_type)] == expected
        used = there.outcomes["promoted"] + there.outcomes["adopted"]
        assert used >= 2, dict(there.outcomes)
        assert there.branching is not None
        book = there.branching.book
        await eventually(lambda: not len(book.filling.reservations))
        book.validate_state()
        assert not there.csl.violations()
