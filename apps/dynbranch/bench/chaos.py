"""A fault at every await of what branches do: nothing stays reserved, and no sampled result serves twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench.chaos_world import Chaos, Faults, FaultyAgent, FaultyRunner, FaultyStore, plans
from dynbranch.bench.result import Measured, Tell
from dynbranch.controller.agents import Agents
from dynbranch.controller.branch_metrics import BranchMetrics
from dynbranch.controller.branching import Branching
from dynbranch.controller.core.branches.admission import Always
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.predicting import registered
from dynbranch.controller.predictor_metrics import PredictorMetrics
from dynbranch.controller.preparing import Preparer
from dynbranch.controller.running import Timings
from dynbranch.controller.templates_in_force import Foretelling, Templates
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import FakeCsl
from dynbranch.demo.measures import exact
from dynbranch.domain.engine import GenerationOrder
from dynbranch.domain.events import ArrivalSeen, OutcomeSeen, OutputTold, Selection, StageTold
from dynbranch.domain.ids import DemandId, GenerationId, Name, UnixMs
from dynbranch.domain.reuse import PURE, Demand, GenerationRef, Hit, Identity, Live
from dynbranch.domain.template import Output, StageKind
from dynbranch.engine_agent.fake import FAKE_MODEL, FakeEngineAgent, Script, ScriptedEngine, text_chunks
from dynbranch.naming.document import parse_body
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.naming.name import reuse_name
from dynbranch.naming.normalise import normalise_chat
from dynbranch.rendering.telling import told_output, told_values
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from prometheus_client import CollectorRegistry

BRANCHES = 2000
AT_ONCE = 24
GROUP = "tenant/t"
DEMANDS_OF_ONE = 3
TIMINGS = Timings(
    store_s=0.2, stage_s=0.5, abort_s=0.2, detach_grace_ms=50, discard_retries_s=(0.02, 0.05, 0.1)
)
BOUNDS = Bounds(linger_s=0.2, branches=4096)
_LEASE_MS = 500
_EMPTY_S = 20.0
_LIFE_S = 1.0

TEMPLATE = """\
workflow_type: TYPE
version: 1
inputs:
  model: {request: route, path: $.model}
  ways: {request: route, path: '$.messages[0].content', regex: '^- (.*)$', every: true}
stages:
  route:
    kind: chat
    request: |
      {"model":{{ model | json_compact }},"messages":[{"role":"user","content":"Ways:
        {%- for way in ways %}\\n- {{ way | in_json }}{% endfor %}"}],"temperature":0}
  work:
    kind: chat
    speculable: SPECULABLE
    request: |
      {"model":{{ model | json_compact }},"messages":[{"role":"user","content":"Go {{ selection | in_json }}"}],"temperature":HEAT}
  finish:
    kind: chat
    speculable: yes
    request: |
      {"model":{{ model | json_compact }},"messages":[{"role":"user","content":"Sum up: {{ output.work.text | in_json }}"}],"temperature":0}
decision_points:
  way:
    stage: route
    window: decode
    branch: exclusive
    resolved_by: {output: route, path: $.way}
    opens: {arrival: route}
    candidates: {menu: {input: ways}, predictors: [offer]}
    then: [work, finish]
    expires_s: 3
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Kind:
    """Greedy work may serve whoever asks for it; a sampled draw serves one demand."""

    workflow_type: str
    speculable: str
    heat: int

    def template(self) -> str:
        text = TEMPLATE.replace("TYPE", self.workflow_type).replace("SPECULABLE", self.speculable)
        return text.replace("HEAT", str(self.heat))


KINDS = (Kind("greedy", "yes", 0), Kind("sampled", "once", 1))


@dataclass(slots=True)
class Tally:
    branches: int = 0
    struck: int = 0
    leaked: int = 0
    sampled: int = 0
    wrongly_reused: int = 0
    served: int = 0


def measure(tell: Tell, *, quick: bool = False, branches: int = BRANCHES) -> Measured:
    branches = 1 if quick else branches
    tally, places, leaks = asyncio.run(_rounds(tell, branches))
    figures = {
        "leaked_slots_kv_trials": exact(tally.leaked, tally.branches),
        "sampled_wrongly_reused": exact(tally.wrongly_reused, tally.sampled),
        "faults_struck": exact(tally.struck, tally.branches),
        "demands_served_ahead": exact(tally.served, tally.branches),
    }
    raw = {"struck_by_place": dict(sorted(places.items())), "leaks": leaks}
    failures = [f"left behind: {leak}" for leak in leaks]
    if tally.wrongly_reused:
        failures.append(f"{tally.wrongly_reused} sampled results served more than one demand")
    return Measured(figures, raw, tuple(failures))


async def _rounds(tell: Tell, branches: int) -> tuple[Tally, Counter[str], list[str]]:
    tally, places, leaks = Tally(), Counter[str](), list[str]()
    while tally.branches < branches:
        tell("branches with a fault each", tally.branches, branches)
        with TemporaryDirectory(prefix="dynbranch-bench-") as folder:
            await _round(Path(folder), tally, places, leaks)
    return tally, places, leaks


async def _round(folder: Path, tally: Tally, places: Counter[str], leaks: list[str]) -> None:
    """Every plan once with each kind of work, in one world."""
    for kind in KINDS:
        (folder / f"{kind.workflow_type}.yaml").write_text(kind.template(), encoding="utf-8")
    world = _World(folder)
    async with world.agent:
        await world.templates.look()
        async with world.branching:
            await world.until(lambda: world.branching.book.filling.reservations.load().engines, _EMPTY_S)
            at_once = asyncio.Semaphore(AT_ONCE)
            todo = [(kind, plan()) for kind in KINDS for plan in plans()]

            async def one(number: int, kind: Kind, chaos: Chaos) -> None:
                async with at_once:
                    await world.life(f"w{number}", kind, chaos, tally)

            async with asyncio.TaskGroup() as group:
                for number, (kind, chaos) in enumerate(todo):
                    group.create_task(one(number, kind, chaos))
            left = await world.left_behind()
            leaks.extend(f"{count} {what}" for what, count in left.items() if count)
            tally.leaked += sum(left.values())
            for _, chaos in todo:
                tally.struck += chaos.struck
                places[f"{chaos.fault.value} {chaos.place}"] += chaos.struck


class _World:
    def __init__(self, folder: Path) -> None:
        clock = SystemClock()
        self.faults = Faults()
        self.csl = FakeCsl(clock=clock, new_id=new_id, limits=Limits(lease_ttl_ms=_LEASE_MS))
        self.engine = ScriptedEngine(clock, self._write, slots=256)
        self.agent = FakeEngineAgent(csl=self.csl, clock=clock, engine=self.engine)
        self.templates = Templates(folder, clock)
        self._gates: dict[str, asyncio.Event] = {}
        agents = Agents(["e1"], lambda _: FaultyAgent(self.agent, self.faults), clock=clock, interval_ms=20)
        store = FaultyStore(self.csl, self.faults)
        registry = CollectorRegistry()
        self.branching = Branching(
            BranchBook(Always(3), bounds=BOUNDS),
            store=store,
            runner=FaultyRunner(store, agents, clock, new_id=new_id, timings=TIMINGS, faults=self.faults),
            preparer=Preparer(agents),
            agents=agents,
            templates=self.templates,
            foretelling=Foretelling(registered(()), clock, PredictorMetrics(registry), deadline_ms=2000.0),
            metrics=BranchMetrics(registry),
            clock=clock,
        )

    def _write(self, order: GenerationOrder) -> Script:
        text = str(json.loads(order.body)["messages"][0]["content"])
        return Script(text_chunks((f"done: {text}",)), gate=self._gates.get(text))

    async def life(self, workflow: str, kind: Kind, chaos: Chaos, tally: Tally) -> None:
        """Two candidates; the loser still runs when the winner is told, and the harness demands what won."""
        who = Identity("t", kind.workflow_type, workflow, "main")
        left, right = f"left {workflow}", f"right {workflow}"
        self._gates[f"Go {right}"] = asyncio.Event()
        self.faults.by_workflow[workflow] = chaos
        values = told_values({"model": FAKE_MODEL.id, "ways": [left, right]})
        told = StageTold("route", values=values, sharing_group=GROUP, cache_scope="scope")
        route = DemandId(workflow.encode())
        self.branching.observe(ArrivalSeen(UnixMs(1), route, who, FAKE_MODEL.id, None, False, told))
        await self.until(lambda: self._ran(workflow, left), _LIFE_S)
        tally.branches += len(self.branching.listed(workflow, 2))
        output = told_output(Output(json.dumps({"way": left})), StageKind.CHAT)
        chosen = OutputTold("route", 0, (Selection("way", (left,)),), output, 10.0)
        self.branching.observe(OutcomeSeen(UnixMs(2), route, "miss", 10.0, told=chosen))
        once = kind.speculable == "once"
        work = await asyncio.gather(
            *(self._demanded(f"Go {left}", who, kind.heat, once=once) for _ in range(DEMANDS_OF_ONE))
        )
        tally.served += any(work)
        if once:
            tally.sampled += 1
            tally.wrongly_reused += max(0, sum(work) - 1)
        await self._demanded(f"Sum up: done: Go {left}", who, 0, once=False)

    def _ran(self, workflow: str, left: str) -> bool:
        for one in self.branching.listed(workflow, 1):
            fills = self.branching.inspect(one.branch_id)["fills"]
            ended = {"shadow", "aborted", "refused", "passed"}
            return any(
                fill["selection"] == left and all(stage["state"] in ended for stage in fill["stages"])
                for fill in fills
            )
        return False

    async def _demanded(self, content: str, who: Identity, heat: int, *, once: bool) -> bool:
        """Whether it got a result that it need not execute."""
        outcome = await self.csl.demand(
            Demand(
                DemandId(new_id()),
                _name_of(content, heat),
                who,
                scope=PURE,
                intended=GenerationRef(GenerationId(new_id()), "e1"),
                may_execute=False,
                once=once,
            ),
            timeout_s=5.0,
        )
        return isinstance(outcome, (Hit, Live))

    async def until(self, what: Any, at_most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                while not what():
                    await asyncio.sleep(0.005)

    async def left_behind(self) -> dict[str, int]:
        """What is still held when everything has had its time, by what it is."""
        book, begin = self.branching.book, time.monotonic()
        while True:
            # The store lets leases go when it is next asked for one.
            await self._demanded("nothing", Identity("t"), 0, once=False)
            book.validate_state()
            left = {
                "reservations of the controller": len(book.filling.reservations),
                "fills of the controller": len(book.filling),
                "branches that did not settle": book.branches.unresolved,
                "slots of the engine": len(self.engine.running),
                "leases of the store": (await self.csl.stats(timeout_s=5.0)).leases,
                "inconsistencies of the store": len(self.csl.violations()),
            }
            if not any(left.values()) or time.monotonic() - begin > _EMPTY_S:
                return left
            await asyncio.sleep(0.05)


def _name_of(content: str, heat: int) -> Name:
    """As a gateway names it."""
    message = {"model": FAKE_MODEL.id, "messages": [{"role": "user", "content": content}]}
    request = normalise_chat(
        parse_body(json.dumps({**message, "temperature": heat}, separators=(",", ":")).encode()),
        FAKE_MODEL.equivalences,
        served_model=FAKE_MODEL.id,
        fingerprint=FAKE_MODEL.fingerprint,
    )
    return reuse_name(GROUP, fingerprint_digest(FAKE_MODEL.fingerprint), request.canonical)
