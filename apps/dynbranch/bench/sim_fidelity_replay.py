"""Workflows of the demo as they really ran, made into workflows of the simulator.

Of the run without DynBranch come what was asked, how many tokens it took, how long a person thought and how
long tools took; of the run with it, what the predictors said. No time that an engine took comes from either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dynbranch.demo.branch_runs import pauses
from dynbranch.demo.playing import Played
from dynbranch.demo.playing import Step as PlayedStep
from dynbranch.demo.stack import TEMPLATES
from dynbranch.domain.template import (
    Branching,
    DecisionPoint,
    Origin,
    Template,
    Window,
)
from dynbranch.rendering.reading import parse_template
from dynbranch.sim.fleet.workflows import Call, Decision, Step, Turn, Workflow
from dynbranch.sim.workloads.traffic_decisions import without_tools

_TOOL: Final = "tool"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a request takes beside its tokens, and how many tokens one of an answer in a form counts for."""

    overhead_s: float
    form_tokens: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request of a model. ``step`` is None of the tools before it, whose time is in ``before_s``."""

    step: PlayedStep
    call: Call
    waits: bool


def template_of(kind: str) -> Template:
    """The shipped one without its tools: their time is that of the stage that follows them."""
    file = TEMPLATES / f"{kind}.yaml"
    return without_tools(parse_template(file.read_text(encoding="utf-8"), file.name))


def workflow_of(played: Played, costs: Costs, branches: Sequence[Mapping[str, Any]] = ()) -> Workflow:
    """``branches`` as the gateway tells them, of the run with DynBranch."""
    template = template_of(played.workflow_type)
    asked = list(_asked(played, costs))
    decisions = _decisions(template, asked, branches)
    pause_s = pauses(played.workflow_type, played.record)
    turns: list[Turn] = []
    steps: list[Step] = []
    gap_s = 0.0
    for place, one in enumerate(asked):
        if one.waits and steps:
            turns.append(Turn(tuple(steps), gap_s))
            steps, gap_s = [], pause_s()
        steps.append(Step(one.call, decisions.get(place)))
    return Workflow(0, 0.0, "default", (*turns, Turn(tuple(steps), gap_s)))


def _asked(played: Played, costs: Costs) -> Iterator[_Asked]:
    tools_s = 0.0
    for step in played.steps:
        if step.kind == _TOOL:
            tools_s += step.latency_ms / 1000
            continue
        _, _, prompt_tokens, output_tokens = json.loads(step.result)
        body = json.loads(step.request)
        rate = costs.form_tokens if "response_format" in body else 1.0
        call = Call(
            stage=step.stage,
            content=hashlib.sha256(step.request).hexdigest(),
            prompt_tokens=max(1, prompt_tokens),
            # The first comes with the prefill.
            output_tokens=1 + max(0, round((output_tokens - 1) * rate)),
            before_s=tools_s + costs.overhead_s,
        )
        yield _Asked(step, call, waits=step.stage == "act")
        tools_s = 0.0


def _decisions(
    template: Template, asked: Sequence[_Asked], branches: Sequence[Mapping[str, Any]]
) -> dict[int, Decision]:
    """By the request whose output decides, or after which a person does."""
    found: dict[int, Decision] = {}
    for point in template.decision_points:
        made = list(_made(point, asked))
        chains = {place: _chain(point, asked, place) for place, picked, _ in made if picked}
        # What is offered independently is the same work whenever it is chosen.
        independent = point.branching is Branching.INDEPENDENT
        later = {picked: chains[place] for place, picked, _ in made if picked and independent}
        left = [one for one in sorted(branches, key=_opened) if one["decision_point"] == point.name]
        for place, picked, shown_at in made:
            ranked = _ranked(left, picked)
            size = chains.get(place) or next(iter(chains.values()), ())
            known = {one: later.get(one) or _instead(size, place, one) for one in ranked}
            if picked:
                known[picked] = chains[place]
            found[place] = Decision(
                point.name,
                (picked,) if picked else (),
                tuple(one for one in ranked if known[one]),
                {name: chain for name, chain in known.items() if chain},
                shown_at=shown_at,
                final=shown_at is not None,
            )
    return found


def _made(point: DecisionPoint, asked: Sequence[_Asked]) -> Iterator[tuple[int, str, int | None]]:
    """Where each decision falls, what it is, and with which token of a decode it can be read."""
    for place, one in enumerate(asked):
        if one.call.stage != point.stage:
            continue
        follows = place + 1 < len(asked) and asked[place + 1].call.stage == point.then[0]
        if not follows:
            yield place, "", None
        elif point.resolved_by.origin is Origin.OUTPUT:
            picked, end = _said(one.step.text, point.resolved_by.path)
            share = end / max(1, len(one.step.text))
            shown_at = min(one.call.output_tokens - 1, round(share * one.call.output_tokens))
            yield place, picked, max(0, shown_at) if point.window is Window.DECODE else None
        else:
            said = json.loads(asked[place + 1].step.request)["messages"][3]["content"]
            yield place, str(said).removeprefix("I pick: "), None


def _said(text: str, path: str) -> tuple[str, int]:
    """A member of a JSON object, and where in the text it ends. One that was cut off says nothing."""
    key = path.removeprefix("$.")
    try:
        value = str(json.loads(text)[key])
    except (ValueError, LookupError, TypeError):
        return "", len(text)
    at = text.index(f'"{key}"')
    spelled = json.dumps(value, ensure_ascii=False)
    end = text.find(spelled, at)
    return value, (end + len(spelled) if end >= 0 else len(text))


def _chain(point: DecisionPoint, asked: Sequence[_Asked], place: int) -> tuple[Call, ...]:
    chain = []
    for one, name in zip(asked[place + 1 :], point.then, strict=False):
        if one.call.stage != name:
            break
        chain.append(one.call)
    return tuple(chain)


def _ranked(left: list[Mapping[str, Any]], picked: str) -> tuple[str, ...]:
    """What was proposed when the branch opened that came to this; it is taken away."""
    for number, branch in enumerate(left):
        resolution = branch["resolution"]
        if resolution is not None and picked in (resolution["selections"] or ()):
            del left[number]
            rows = sorted(branch["candidates"], key=lambda row: row["rank"])
            told = [row["seen_in_decode"] or row["spoken_of"] for row in rows]
            return tuple(str(row["selection"]) for row, shown in zip(rows, told, strict=True) if not shown)
    return ()


def _opened(branch: Mapping[str, Any]) -> float:
    return float(branch["opened_unix_ms"])


def _instead(chain: Sequence[Call], place: int, selection: str) -> tuple[Call, ...]:
    """Of what nobody asks for, as long as what was asked for."""
    return tuple(
        replace(call, content=f"not asked: {place} {selection} {number}") for number, call in enumerate(chain)
    )
