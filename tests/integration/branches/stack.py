"""Every service in one thread: gateway, controller, store and engine agent, each with its production core and
shell, and lines between them that can be lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dynbranch.controller.agents import Agents
from dynbranch.controller.branch_metrics import BranchMetrics
from dynbranch.controller.branching import Branching
from dynbranch.controller.core.branches.admission import Always
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.messages import RunStage, StageBegan, StageEnded
from dynbranch.controller.core.journal import Journal
from dynbranch.controller.predicting import registered
from dynbranch.controller.predictor_metrics import PredictorMetrics
from dynbranch.controller.preparing import Preparer
from dynbranch.controller.running import Runner, Timings
from dynbranch.controller.templates_in_force import Foretelling, Templates
from dynbranch.csl.core import founding
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import FakeCsl, counting_ids
from dynbranch.csl.key_value import MemoryKeyValue, StoreFull
from dynbranch.csl.shell import HOUSEKEEPING_S, Shell
from dynbranch.domain.branches import BranchSummary, TemplateSet
from dynbranch.domain.engine import GenerationOrder
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.domain.ids import BranchId, Name
from dynbranch.engine_agent.engines.port import CleanEnd, Heard
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine, text_chunks
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.tenants import Tenants
from dynbranch.rendering.following import Follower
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.reading import parse_template
from dynbranch.rendering.watching import LoadedTemplate
from dynbranch.runtime.tasks import Tasks
from integration.branches.every_await import Awaits, LeapingClock, Line, Stepped
from prometheus_client import CollectorRegistry

LEASE_MS = 2000
LIMITS = Limits(lease_ttl_ms=LEASE_MS)
TIMINGS = Timings(detach_grace_ms=50, stage_s=20, abort_s=2.0)
LIFE_S = 2.0
"""Longest wait for what a fault may have prevented."""

REST_S = 60.0
"""By then everything has been given back, whatever was lost."""

TEMPLATE = """\
workflow_type: ways
version: 1
inputs:
  ways: {request: route, path: '$.messages[0].content', regex: '^- (.*)$', every: true}
stages:
  route:
    kind: chat
    request: |
      {"model":"fake-model","messages":[{"role":"user","content":"Ways:
        {%- for way in ways %}\\n- {{ way | in_json }}{% endfor %}"}],"temperature":0}
  work:
    kind: chat
    speculable: SPECULABLE
    request: |
      {"model":"fake-model","messages":[{"role":"user","content":"Go {{ selection | in_json }}"}],"temperature":HEAT}
  finish:
    kind: chat
    speculable: yes
    request: |
      {"model":"fake-model","messages":[{"role":"user","content":"Sum up: {{ output.work.text | in_json }}"}],"temperature":0}
decision_points:
  way:
    stage: route
    window: decode
    branch: exclusive
    resolved_by: {output: route, path: $.way}
    opens: {arrival: route}
    candidates: {menu: {input: ways}, predictors: [offer]}
    then: [work, finish]
    expires_s: 10
"""  # noqa: E501

ROUTE = "Ways:\n- left\n- right"


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the gateway. ``cut``: the response did not come to its end."""

    status: int
    outcome: str
    body: bytes
    cut: bool

    @property
    def text(self) -> str:
        return str(json.loads(self.body)["choices"][0]["message"]["content"])


class _InProcess:
    """The controller as gateways see it."""

    def __init__(self, branching: Branching, clock: LeapingClock) -> None:
        self._branching = branching
        self._journal = Journal()
        self._clock = clock

    async def report_events(self, batch: EventBatch, *, timeout_s: float) -> int:
        fresh = self._journal.handle(batch, self._clock.now()).fresh
        for event in fresh:
            self._branching.observe(event)
        return len(fresh)

    def watch_templates(self) -> AsyncGenerator[TemplateSet]:
        return self._branching.templates.watch()

    async def list_branches(
        self, *, workflow_id: str, at_most: int, timeout_s: float
    ) -> tuple[BranchSummary, ...]:
        return self._branching.listed(workflow_id, at_most)

    async def inspect_branch(self, branch_id: BranchId, *, timeout_s: float) -> str:
        return json.dumps(self._branching.inspect(branch_id))

    async def summary(self, *, timeout_s: float) -> ControllerSummary:
        return self._branching.counted(self._journal.summary())

    async def close(self) -> None:
        """Ends with the world."""


class _WatchedRunner(Runner):
    awaits: Awaits

    async def run(self, ask: RunStage, began: Callable[[StageBegan], None]) -> StageEnded:
        ended: StageEnded = await Stepped(super().run(ask, began), "fill", self.awaits)
        return ended


class _WatchedEngine(ScriptedEngine):
    awaits: Awaits

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        end: CleanEnd = await Stepped(super().run(order, heard), "engine", self.awaits)
        return end


@dataclass
class Stack:
    csl: FakeCsl
    engine: _WatchedEngine
    agent: FakeEngineAgent
    branching: Branching
    gateway: Gateway
    awaits: Awaits
    heat: int
    ids: Callable[[], bytes]
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    """How often the engine was asked each text."""
    demanded: set[Name] = field(default_factory=set)
    begun: set[Name] = field(default_factory=set)
    """What was run ahead."""
    given: list[str] = field(default_factory=list)
    """The draws that harnesses got."""
    left: asyncio.Event = field(default_factory=asyncio.Event)

    # -- harnesses -----------------------------------------------------------------------------------------

    def body_of(self, content: str) -> bytes:
        heat = self.heat if content.startswith("Go") else 0
        message = {"model": "fake-model", "messages": [{"role": "user", "content": content}]}
        return json.dumps({**message, "temperature": heat}, separators=(",", ":")).encode()

    async def post(
        self, content: str, *, who: str = "", workflow: str = "w1", key: str = ""
    ) -> Answer | None:
        """One request. None: cancelled, or its client left. ``who``: as what its awaits are watched."""
        headers = {"workflow-type": "ways", "workflow": workflow, "agent": "main"}
        told = {f"x-dynbranch-{name}": value for name, value in headers.items()}
        answer = await self.ask("POST", "/v1/chat/completions", self.body_of(content), told, key=key, who=who)
        drawn = self.heat and content.startswith("Go")
        if drawn and answer is not None and answer.status == 200 and not answer.cut:
            self.given.append(answer.text)
        return answer

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        key: str = "",
        who: str = "",
    ) -> Answer | None:
        """Anything that the gateway may be asked. None as of ``post``."""
        sent: list[dict[str, Any]] = []
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(part: Any) -> None:
            await asyncio.sleep(0)
            sent.append(dict(part))

        authorization = {"authorization": f"Bearer {key}"} if key else {}
        known = {"content-type": "application/json", **headers, **authorization}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in known.items()],
        }
        # A task of its own, as a server gives it; it is never left alone.
        work = Stepped(self.gateway.app(scope, receive, send), who, self.awaits)
        task = asyncio.get_running_loop().create_task(_awaited(work), name=f"{method} {path}")
        await asyncio.wait((task,))
        gone, self.left = self.left.is_set(), asyncio.Event()
        if task.cancelled():
            return None
        task.result()
        if gone:
            return None
        return _answer_of(sent)

    async def until(self, what: Callable[[], object], at_most_s: float = LIFE_S) -> bool:
        end = asyncio.get_running_loop().time() + at_most_s
        while not what() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        return bool(what())

    def states(self, selection: str) -> list[str]:
        """Of its stages, in the newest branch."""
        for one in self.branching.listed("w1", 1):
            for fill in self.branching.inspect(one.branch_id)["fills"]:
                if fill["selection"] == selection:
                    return [str(stage["state"]) for stage in fill["stages"]]
        return []

    # -- faults --------------------------------------------------------------------------------------------

    def restart_store(self) -> None:
        """What it had in memory is lost, its rows stay."""
        self.csl.store.apply(founding.open_store(self.csl.store))
        library = Library(limits=LIMITS, new_id=self.ids, view=self.csl.store)
        self.csl.shell = Shell(self.csl.store, library, LeapingClock())

    def lose_engine(self) -> None:
        self.engine.die()
        asyncio.get_running_loop().call_later(0.5, self.engine.revive)

    def leave(self) -> None:
        """The client of the request that runs closes its connection."""
        self.left.set()

    # -- when all is over ----------------------------------------------------------------------------------

    def held(self) -> dict[str, int]:
        """What is reserved anywhere, by what it is."""
        book, registry = self.branching.book, self.agent.agent.registry
        stats = self.csl.shell.stats_now()
        return {
            "the controller's reservations": len(book.filling.reservations),
            "the controller's fills": len(book.filling),
            "the controller's open branches": book.branches.unresolved,
            "the agent's open generations": registry.open_count,
            "the agent's slots": registry.slots.used,
            "the agent's slots for fills": registry.speculation.slots,
            "the agent's tokens for fills": registry.speculation.tokens,
            "the agent's leases": len(registry.leases.held),
            "the engine's runs": len(self.engine.running),
            "the store's leases": stats.leases,
            "the store's fills": stats.fills,
            "the store's shadows": stats.shadows,
            "the gateway's requests": len(self.gateway.in_flight),
            "the gateway's generations": sum(
                agent.load.in_flight + agent.load.intended for agent in self.gateway.directory.agents
            ),
        }

    def is_ready(self) -> bool:
        (known,) = self.gateway.directory.agents
        return self.engine.alive and not self.agent.agent._not_ready_reason() and known.available

    async def comes_to_rest(self) -> None:
        """Fails unless everything was given back, and nothing can be read that nobody demanded."""
        loop = asyncio.get_running_loop()
        end = loop.time() + REST_S
        while any(self.held().values()) and loop.time() < end:
            await asyncio.sleep(0.5)
        left = {what: count for what, count in self.held().items() if count}
        assert not left, f"still held: {left}"
        self.branching.book.validate_state()
        registry = self.agent.agent.registry
        registry.validate_state()
        assert not self.csl.violations()
        for name in self.begun - self.demanded:
            assert self.csl.shell.library.inspect(name, self.csl.store).entry is None, "nobody demanded it"
        assert await self.until(self.is_ready, REST_S)


async def _keep_house(csl: FakeCsl) -> None:
    """Of the store as it is: one that was restarted does nothing more."""
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        try:
            await csl.shell._keep_house()
        except StoreFull as error:
            csl.shell._say_full(error)


async def _awaited(work: Stepped) -> None:
    await work


def _answer_of(sent: list[dict[str, Any]]) -> Answer:
    if not sent:
        return Answer(0, "", b"", cut=True)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(part["body"] for part in sent[1:])
    whole = len(sent) > 1 and not sent[-1].get("more_body", False)
    return Answer(sent[0]["status"], headers.get("x-dynbranch-outcome", ""), body, cut=not whole)


class _Named(Line):
    """Notes the names that one call of the store is about."""

    def __init__(self, inner: Any, who: str, awaits: Awaits, names: set[Name]) -> None:
        super().__init__(inner, who, awaits)
        self._names = names

    async def _called(self, call: Any, where: str, *args: Any, **named: Any) -> Any:
        if where.endswith((" demand", " begin_fill")):
            self._names.add(args[0].name)
        return await super()._called(call, where, *args, **named)


@asynccontextmanager
async def running_stack(
    awaits: Awaits,
    *,
    once: bool = False,
    rows: MemoryKeyValue | None = None,
    tenants: Tenants | None = None,
    loaded: LoadedTemplate | None = None,
    decides: Script | None = None,
) -> AsyncIterator[Stack]:
    """Within, everybody knows everybody. ``once``: the stage that is run ahead is a sampled one. ``decides``:
    how the engine answers what asks for the way."""
    clock, ids, heat = LeapingClock(), counting_ids(), int(once)
    csl = FakeCsl(clock=clock, new_id=ids, limits=LIMITS, rows=rows)
    runs, gates = Counter[str](), dict[str, asyncio.Event]()
    demanded, begun = set[Name](), set[Name]()

    def write(order: GenerationOrder) -> Script:
        asked = str(json.loads(order.body)["messages"][0]["content"])
        runs[asked] += 1
        if decides is not None and asked.startswith("Ways:"):
            return decides
        said = json.dumps({"way": "left"}) if asked == ROUTE else f"done: {asked}"
        if once and asked.startswith("Go"):
            said += f" #{runs[asked]}"
        return Script(text_chunks((said,)), gate=gates.get(asked))

    engine = _WatchedEngine(clock, write, slots=16)
    engine.awaits = awaits
    agent = FakeEngineAgent(csl=Line(csl, "agent to store:", awaits), clock=clock, engine=engine)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(Tasks())
        tasks.spawn(_keep_house(csl), name="housekeeping of the store")
        await stack.enter_async_context(agent)
        branching = await stack.enter_async_context(
            await _branching(loaded or template(once), csl, agent, clock, ids, awaits, begun)
        )
        controller: Any = Line(_InProcess(branching, clock), "gateway to controller:", awaits)
        peers = Peers(
            _Named(csl, "gateway to store:", awaits, demanded),
            controller,
            lambda _: Line(agent, "gateway to agent:", awaits),  # type: ignore[arg-type,return-value]
            controller,
        )
        settings = GatewaySettings(agents=("e1",), occupancy_interval_ms=1000)
        gateway = Gateway(
            settings, peers, tenants or Tenants(), clock=clock, new_id=ids, registry=CollectorRegistry()
        )
        await stack.enter_async_context(gateway)
        made = Stack(csl, engine, agent, branching, gateway, awaits, heat, ids, gates, runs, demanded, begun)
        known = gateway.templates
        assert known is not None
        assert await made.until(lambda: not gateway.readiness.missing() and known.of("ways"), 10.0)
        assert await made.until(lambda: branching.book.filling.reservations.load().engines, 10.0)
        awaits.armed = True
        yield made


@cache
def template(once: bool, *changes: tuple[str, str]) -> LoadedTemplate:
    """``changes``: what stands there, and what shall."""
    text = TEMPLATE.replace("SPECULABLE", "once" if once else "yes").replace("HEAT", str(int(once)))
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    parsed = parse_template(text, "ways.yaml", JinjaRenderer)
    return LoadedTemplate(Path("ways.yaml"), text, parsed, Follower(parsed), JinjaRenderer(parsed))


class _Known(Templates):
    """What is in force, without a folder."""

    def __init__(self, loaded: LoadedTemplate, clock: LeapingClock) -> None:
        super().__init__(None, clock)
        self._revision = 1
        self._loaded = loaded

    @property
    def in_force(self) -> Mapping[str, LoadedTemplate]:
        return {self._loaded.template.workflow_type: self._loaded}

    def version(self, digest: str) -> LoadedTemplate:
        assert digest == self._loaded.template.digest
        return self._loaded


async def _branching(
    loaded: LoadedTemplate,
    csl: FakeCsl,
    agent: FakeEngineAgent,
    clock: LeapingClock,
    ids: Callable[[], bytes],
    awaits: Awaits,
    begun: set[Name],
) -> Branching:
    store: Any = _Named(csl, "controller to store:", awaits, begun)
    to_agent: Any = Line(agent, "controller to agent:", awaits)
    agents = Agents(["e1"], lambda _: to_agent, clock=clock, interval_ms=1000)
    registry = CollectorRegistry()
    runner = _WatchedRunner(store, agents, clock, new_id=ids, timings=TIMINGS)
    runner.awaits = awaits
    return Branching(
        BranchBook(Always(3), bounds=Bounds(linger_s=0.5)),
        store=store,
        runner=runner,
        preparer=Preparer(agents),
        agents=agents,
        templates=_Known(loaded, clock),
        foretelling=Foretelling(registered(()), clock, PredictorMetrics(registry), deadline_ms=2000.0),
        metrics=BranchMetrics(registry),
        clock=clock,
    )
