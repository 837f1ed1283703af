"""The controller's branches beside the store's and the agent's twins, and a harness that plays a workflow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dynbranch.clients.ports import EngineAgent
from dynbranch.controller.agents import Agents
from dynbranch.controller.branch_metrics import BranchMetrics
from dynbranch.controller.branching import Branching
from dynbranch.controller.core.branches.admission import Admission, Always
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.predicting import registered
from dynbranch.controller.predictor_metrics import PredictorMetrics
from dynbranch.controller.preparing import Preparer
from dynbranch.controller.running import Runner, Store, Timings
from dynbranch.controller.templates_in_force import Foretelling, Templates
from dynbranch.csl.fake import FakeCsl
from dynbranch.domain.engine import GenerationOrder
from dynbranch.domain.events import ArrivalSeen, ChoiceSeen, OutcomeSeen, OutputTold, Selection, StageTold
from dynbranch.domain.ids import DemandId, GenerationId, Name, UnixMs
from dynbranch.domain.reuse import PURE, Demand, DemandOutcome, GenerationRef, Identity
from dynbranch.domain.template import Output, StageKind
from dynbranch.engine_agent.fake import FAKE_MODEL, FakeEngineAgent, Script, ScriptedEngine, text_chunks
from dynbranch.naming.document import parse_body
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.naming.name import reuse_name
from dynbranch.naming.normalise import normalise_chat
from dynbranch.rendering.telling import told_output, told_values
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import Clock, SystemClock
from prometheus_client import CollectorRegistry

GROUP = "tenant/t"
WHO = Identity("t", "ways", "w1", "main")

TEMPLATE = """\
workflow_type: ways
version: 1
inputs:
  model: {request: route, path: $.model}
  ways: {request: route, path: '$.messages[0].content', regex: '^- (.*)$', every: true}
stages:
  route:
    kind: chat
    repeats: true
    request: |
      {"model":{{ model | json_compact }},"messages":[{"role":"user","content":"Ways:
        {%- for way in ways %}\\n- {{ way | in_json }}{% endfor %}"}],"temperature":0}
  work:
    kind: chat
    speculable: yes
    reads: READS
    repeats: true
    request: |
      {"model":{{ model | json_compact }},"messages":[{"role":"user","content":"Go {{ selection | in_json }}"}],"temperature":0}
  finish:
    kind: chat
    speculable: yes
    repeats: true
    request: |
      {"model":{{ model | json_compact }},"messages":[{"role":"user","content":"Sum up: {{ output.work.text | in_json }}"}],"temperature":0}
decision_points:
  way:
    stage: route
    window: decode
    branch: BRANCHING
    resolved_by: {output: route, path: $.way}
    opens: {arrival: route}
    candidates:
      menu: {input: ways}
      predictors: [offer]
    then: [work, finish]
    expires_s: EXPIRES
"""  # noqa: E501


def body(content: str, temperature: float = 0) -> bytes:
    messages = [{"role": "user", "content": content}]
    message = {"model": "fake-model", "messages": messages, "temperature": temperature}
    return json.dumps(message, separators=(",", ":")).encode()


def name_of(content: str, temperature: float = 0) -> Name:
    """As a gateway names it."""
    request = normalise_chat(
        parse_body(body(content, temperature)),
        FAKE_MODEL.equivalences,
        served_model=FAKE_MODEL.id,
        fingerprint=FAKE_MODEL.fingerprint,
    )
    return reuse_name(GROUP, fingerprint_digest(FAKE_MODEL.fingerprint), request.canonical)


def said(order: GenerationOrder) -> str:
    return str(json.loads(order.body)["messages"][0]["content"])


def put_template(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "ways.yaml").write_text(text)


@dataclass
class World:
    csl: FakeCsl
    engine: ScriptedEngine
    agent: FakeEngineAgent
    branching: Branching
    registry: CollectorRegistry
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    """What an engine waits for before it answers a request of that text."""
    delays_s: dict[str, float] = field(default_factory=dict)

    # -- a harness and its gateway -------------------------------------------------------------------------

    def arrive(self, demand: str, *ways: str, who: Identity = WHO) -> None:
        values = told_values({"model": "fake-model", "ways": list(ways)})
        told = StageTold("route", values=values, sharing_group=GROUP, cache_scope="scope")
        self.branching.observe(
            ArrivalSeen(UnixMs(1), DemandId(demand.encode()), who, "fake-model", None, False, told)
        )

    def arrive_as(self, workflow: str) -> str:
        self.arrive(f"of {workflow}", "left", "right", who=replace(WHO, workflow_id=workflow))
        return workflow

    def answer(self, demand: str, *chosen: str, outcome: str = "miss") -> None:
        output = told_output(Output(json.dumps({"way": (*chosen, "")[0]})), StageKind.CHAT)
        told = OutputTold("route", 0, (Selection("way", chosen),), output, 10.0)
        self.branching.observe(OutcomeSeen(UnixMs(2), DemandId(demand.encode()), outcome, 10.0, told=told))

    def choice(self, demand: str, chosen: str, *, closed: bool = False) -> None:
        selection = Selection("way", (chosen,))
        self.branching.observe(
            ChoiceSeen(UnixMs(2), DemandId(demand.encode()), WHO, "route", 0, selection, closed, 3)
        )

    async def demand(
        self,
        content: str,
        *,
        who: Identity = WHO,
        demand: str = "",
        may_execute: bool = True,
        once: bool = False,
    ) -> DemandOutcome:
        return await self.csl.demand(
            Demand(
                DemandId(new_id()),
                name_of(content, 0.7 if once else 0),
                who,
                scope=PURE,
                intended=GenerationRef(GenerationId(new_id()), "e1"),
                may_execute=may_execute,
                once=once,
            ),
            timeout_s=5.0,
        )

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def view(self) -> dict[str, Any]:
        """The newest branch."""
        (newest, *_) = self.branching.listed("", 1)
        return self.branching.inspect(newest.branch_id)

    def states(self) -> dict[str, list[str]]:
        return {f["selection"]: [s["state"] for s in f["stages"]] for f in self.view["fills"]}

    async def until(self, what: Callable[[], object]) -> None:
        """Fails by the test's own time limit."""
        while not what():
            await asyncio.sleep(0.005)
            self.branching.book.validate_state()

    async def settled(self) -> dict[str, Any]:
        await self.until(lambda: self.view["state"] == "settled")
        return self.view

    async def empty(self) -> None:
        """Nothing is held anywhere: not by the book, not by the agent, not by the store."""
        book = self.branching.book
        await self.until(lambda: not len(book.filling.reservations))
        await self.until(lambda: not self.engine.running)
        while (await self.csl.stats(timeout_s=5.0)).leases:
            await asyncio.sleep(0.01)
            # The store lets leases go when it is next asked for one.
            await self.demand("nothing", may_execute=False)
        book.validate_state()
        assert not self.csl.violations()


@asynccontextmanager
async def world(
    folder: Path,
    *,
    branching: str = "exclusive",
    admission: Admission | None = None,
    bounds: Bounds | None = None,
    clock: Clock | None = None,
    wrap_store: Callable[[Store], Store] = lambda store: store,
    wrap_agent: Callable[[EngineAgent], EngineAgent] = lambda agent: agent,
    timings: Timings | None = None,
    csl: FakeCsl | None = None,
    reads: str = "none",
    once: bool = False,
    expires_s: float = 120.0,
    epoch: int = 0,
) -> AsyncIterator[World]:
    clock = clock or SystemClock()
    csl = csl or FakeCsl(clock=clock, new_id=new_id)
    text = TEMPLATE.replace("BRANCHING", branching).replace("READS", reads)
    if once:
        text = text.replace("speculable: yes", "speculable: once", 1)
        head, sampled, tail = text.partition('in_json }}"}],"temperature":0')
        text = f"{head}{sampled}.7{tail}"
    put_template(folder, text.replace("EXPIRES", str(expires_s)))
    held: list[World] = []

    def write(order: GenerationOrder) -> Script:
        text = said(order)
        items = text_chunks((f"done: {text}",))
        return Script(items, first_s=held[0].delays_s.get(text, 0.0), gate=held[0].gates.get(text))

    engine = ScriptedEngine(clock, write, slots=8)
    async with FakeEngineAgent(csl=csl, clock=clock, engine=engine) as agent:
        agents = Agents(["e1"], lambda address: wrap_agent(agent), clock=clock, interval_ms=20)
        store = wrap_store(csl)
        templates = Templates(folder, clock)
        await templates.look()
        registry = CollectorRegistry()
        timings = timings or Timings(detach_grace_ms=50)
        opened = Branching(
            BranchBook(admission or Always(3), bounds=bounds),
            store=store,
            runner=Runner(store, agents, clock, new_id=new_id, timings=timings, epoch=epoch),
            preparer=Preparer(agents),
            agents=agents,
            templates=templates,
            foretelling=Foretelling(registered(()), clock, PredictorMetrics(registry), deadline_ms=2000.0),
            metrics=BranchMetrics(registry),
            clock=clock,
        )
        async with opened:
            made = World(csl, engine, agent, opened, registry)
            held.append(made)
            await made.until(lambda: opened.book.filling.reservations.load().engines)
            yield made
