"""How much of a decision's window one right fill hides: at most the shorter of the decode and the execution.

Engines take fixed times, so that nothing but the way through the services is between the bound and what is
measured. ``floor`` and ``ahead`` are the same workflow through the same services, with DynBranch disabled and
with one candidate, the right one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dynbranch.bench.acting import MODEL, acted, cut_into
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.demo.flows import Ask, Flow
from dynbranch.demo.measures import Figure, median
from dynbranch.demo.playing import AHEAD, Player
from dynbranch.demo.rehearsal import Performance
from dynbranch.demo.stack import Stack
from dynbranch.enginemodel.messages import Pace
from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.stub_engine.matching import RequestView
from dynbranch.stub_engine.script import Reply

REPETITIONS = 9
QUICK = 2
WARM_UPS = 2
TOKENS = 20
KIND = "overlap"
TEMPLATE = """\
workflow_type: overlap
version: 1
inputs:
  only: {request: decide, path: '$.messages[0].content', regex: '^- (.*)$', every: true}
stages:
  decide:
    kind: chat
    request: |
      {"model":"stub-model","messages":[{"role":"user","content":"Choose:\\n- {{ only[0] | in_json }}"}],"temperature":0}
  act:
    kind: chat
    speculable: yes
    request: |
      {"model":"stub-model","messages":[{"role":"user","content":"Do {{ selection | in_json }}"}],"temperature":0}
decision_points:
  choice:
    stage: decide
    window: decode
    branch: exclusive
    resolved_by: {output: decide, path: $.choice}
    opens: {arrival: decide}
    candidates: {menu: {input: only}, predictors: [offer]}
    then: [act]
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Durations:
    """Of the decision's decode, and of what runs after it."""

    decide_ms: float
    act_ms: float

    @property
    def bound_ms(self) -> float:
        return min(self.decide_ms, self.act_ms)

    @property
    def ratio(self) -> float:
        return self.decide_ms / self.act_ms


DURATIONS = (
    Durations(2000, 4000),
    Durations(2000, 2600),
    Durations(2000, 2000),
    Durations(2600, 2000),
    Durations(4000, 2000),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One workflow, both ways. ``outcome`` is that of the request that ran ahead."""

    durations: Durations
    floor_ms: float
    ahead_ms: float
    outcome: str
    steps_ms: tuple[float, ...]
    """Of the workflow that ran ahead."""

    @property
    def hidden(self) -> float:
        """Of the bound."""
        return (self.floor_ms - self.ahead_ms) / self.durations.bound_ms


def measure(tell: Tell, *, quick: bool = False, repetitions: int = REPETITIONS) -> Measured:
    repetitions = QUICK if quick else repetitions
    pairs = asyncio.run(_pairs(tell, repetitions))
    return Measured(
        figures_of(pairs),
        {
            "pairs": [
                {
                    "decide_ms": pair.durations.decide_ms,
                    "act_ms": pair.durations.act_ms,
                    "floor_ms": round(pair.floor_ms, 2),
                    "ahead_ms": round(pair.ahead_ms, 2),
                    "hidden_over_bound": round(pair.hidden, 4),
                    "outcome": pair.outcome,
                    "ahead_steps_ms": [round(ms, 2) for ms in pair.steps_ms],
                }
                for pair in pairs
            ]
        },
        tuple(f"a fill did not run ahead: {pair}" for pair in pairs if pair.outcome not in AHEAD),
        _table(pairs),
    )


def figures_of(pairs: list[Pair]) -> dict[str, Figure]:
    """Medians for each ratio of the two durations, and of those the smallest and the largest."""
    by_ratio = _by_ratio(pairs)
    named = {f"hidden_over_bound_ratio_{ratio:.2f}": figure for ratio, figure in by_ratio.items()}
    return {
        "hidden_over_bound_min": min(by_ratio.values(), key=lambda figure: figure.value),
        "hidden_over_bound_max": max(by_ratio.values(), key=lambda figure: figure.value),
        **named,
    }


def _by_ratio(pairs: list[Pair]) -> dict[float, Figure]:
    found: dict[float, list[float]] = {}
    for pair in pairs:
        found.setdefault(pair.durations.ratio, []).append(pair.hidden)
    return {ratio: median(values) for ratio, values in sorted(found.items())}


def _table(pairs: list[Pair]) -> tuple[tuple[str, ...], ...]:
    rows = [("decode / execution", "hidden / bound", "95 % interval")]
    for ratio, figure in _by_ratio(pairs).items():
        rows.append((f"{ratio:.2f}", f"{figure.value:.3f}", f"{figure.ci_low:.3f} – {figure.ci_high:.3f}"))
    return tuple(rows)


async def _pairs(tell: Tell, repetitions: int) -> list[Pair]:
    with TemporaryDirectory(prefix="dynbranch-bench-") as name:
        folder = Path(name)
        templates = folder / "templates"
        templates.mkdir()
        (templates / "overlap.yaml").write_text(TEMPLATE, encoding="utf-8")
        tell("starting the services", 0, 0)
        async with acted(
            folder / "stack",
            engines=2,
            latency=FixedParameters(),
            writer=_writer,
            policy="always",
            templates=templates,
            slots=32,
        ) as stack:
            await _warm(stack)
            pairs: list[Pair] = []
            for repetition in range(repetitions):
                tell("workflows", repetition, repetitions)
                # Engines take the same times whatever runs beside: all ratios at once cost little.
                found = await asyncio.gather(
                    *(
                        _pair(stack, one, repetition * len(DURATIONS) + n, first_ahead=repetition % 2 == 1)
                        for n, one in enumerate(DURATIONS)
                    )
                )
                pairs.extend(found)
            return pairs


async def _warm(stack: Stack) -> None:
    """Until the gateway knows the template and a fill was used. Raises BenchFailed."""
    short = Durations(300, 300)
    used = 0
    for number in range(20):
        pair = await _pair(stack, short, -1 - number, first_ahead=True)
        used += pair.outcome in AHEAD
        if used > WARM_UPS:
            return
        await asyncio.sleep(0.2)
    raise BenchFailed("nothing runs ahead")


async def _pair(stack: Stack, durations: Durations, number: int, *, first_ahead: bool) -> Pair:
    spent: dict[str, float] = {}
    outcome = ""
    steps_ms: tuple[float, ...] = ()
    ways = [("floor", stack.floor_url), ("ahead", stack.url)]
    for way, url in reversed(ways) if first_ahead else ways:
        async with Player(url) as player:
            flow = _flow(f"{number} {durations.decide_ms:g} {durations.act_ms:g}")
            played = await player.play(Performance(KIND, str(number), flow), workflow_id=f"{way}{number}")
        spent[way] = played.latency_ms
        if way == "ahead":
            outcome = played.steps[-1].outcome
            steps_ms = tuple(step.latency_ms for step in played.steps)
    return Pair(durations, spent["floor"], spent["ahead"], outcome, steps_ms)


def _flow(label: str) -> Flow:
    decision = yield _ask("decide", f"Choose:\n- {label}")
    return (yield _ask("act", f"Do {json.loads(decision)['choice']}"))


def _ask(stage: str, text: str) -> Ask:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0}
    return Ask(stage, "chat", MODEL, json.dumps(body, separators=(",", ":")).encode())


def _writer(view: RequestView) -> Reply:
    """Durations stand in the request, after its number."""
    said = view.last_user
    decides = said.startswith("Choose")
    label = said.partition("- ")[2] if decides else said.removeprefix("Do ")
    words: Iterator[str] = iter(label.split())
    _, decide_ms, act_ms = next(words), float(next(words)), float(next(words))
    text = json.dumps({"why": "it is the only one there is", "choice": label}) if decides else f"done {label}"
    step_ms = (decide_ms if decides else act_ms) / TOKENS
    return Reply(text=text, chunks=cut_into(text.ljust(TOKENS), TOKENS), pace=Pace(step_ms, step_ms))
