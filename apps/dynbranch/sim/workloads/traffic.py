"""A user's own traffic, as a gateway has recorded it, made into a workload that any arm can be tried on.

Equal reuse names are equal content, gaps are as they were, and lengths are what the engine counted. What the
file does not tell is not made up: without a template nothing runs ahead, and without bodies no prompt shares
its beginning with another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from dynbranch.domain.template import StageKind, Template, Window
from dynbranch.enginemodel.messages import Block
from dynbranch.sim.fleet.workflows import Call, Step, Turn, Workflow, Workload, Write
from dynbranch.sim.workloads.traffic_decisions import Decided, decided, without_tools
from dynbranch.templates.traffic import Exchange, Written, read_recording

THINK_S: Final = 2.0
"""A longer pause in which no tool ran counts as a person's."""

BLOCK_TOKENS: Final = 16
_CHARACTERS_PER_TOKEN: Final = 4.0
_OTHER: Final = "request"
"""The stage of a request of which none is told."""


class NothingToReplay(ValueError):
    """No request of the traffic can be replayed. The message says why."""


@dataclass(frozen=True, slots=True)
class Replayable:
    """``notes``: what was left out or assumed, for a person."""

    workload: Workload
    notes: tuple[str, ...]


def from_traffic(
    paths: Sequence[Path], *, template: Template | None = None, think_s: float = THINK_S
) -> Replayable:
    """Of several files, as of several gateways or rotated ones, in any order. ``template``: only its
    workflow type is replayed, and its decision points may run ahead. Raises NothingToReplay, TrafficInvalid,
    OSError."""
    read = [read_recording(path) for path in paths]
    exchanges = sorted((one for part in read for one in part.exchanges), key=lambda one: one.at_ms)
    return replayable(
        exchanges,
        name=paths[0].stem if paths else "",
        template=template,
        think_s=think_s,
        writes=[one for part in read for one in part.writes],
    )


def replayable(
    exchanges: Sequence[Exchange],
    *,
    name: str,
    template: Template | None = None,
    think_s: float = THINK_S,
    writes: Sequence[Written] = (),
) -> Replayable:
    """``exchanges`` in the order of arrival. Raises NothingToReplay."""
    if template is not None:
        exchanges = [one for one in exchanges if one.workflow_type == template.workflow_type]
    sized, left_out = _sized(exchanges)
    if not sized:
        raise NothingToReplay("no request of a model with an answer and its token counts is in the traffic")
    rate = _characters_per_token(sized)
    lanes = list(_lanes(sized))
    began_ms = min(lane[0].at_ms for lane in lanes)
    known = Template(name or "traffic", 1, (), (), ()) if template is None else without_tools(template)
    tools = _tools(exchanges)
    paused = [_pauses(lane, tools) for lane in lanes]
    # What runs ahead waits for its tools as the harness does, and for nobody's thinking.
    calls = [
        [_call(one, rate, pause.seconds if pause.in_tools else 0.0) for one, pause in zip(*both, strict=True)]
        for both in zip(lanes, paused, strict=True)
    ]
    decisions = decided(lanes, calls, known)
    workflows = []
    for number, (lane, of_lane, pauses) in enumerate(zip(lanes, calls, paused, strict=True)):
        steps = [Step(call, decisions.get((number, place))) for place, call in enumerate(of_lane)]
        turns = _turns(lane, steps, pauses, known, think_s)
        at_s = (lane[0].at_ms - began_ms) / 1000
        workflows.append(Workflow(number, at_s, lane[0].tenant or "default", turns))
    written = tuple(_writes(writes, began_ms))
    workload = Workload(f"traffic {name}".strip(), known, tuple(workflows), written)
    return Replayable(workload, tuple(_notes(exchanges, sized, lanes, left_out, decisions)))


def _writes(writes: Sequence[Written], began_ms: float) -> Iterator[Write]:
    """Those before the first request change nothing."""
    for one in sorted(writes, key=lambda one: one.at_ms):
        if one.at_ms >= began_ms:
            yield Write((one.at_ms - began_ms) / 1000, one.records)


# -- which requests, and of what size ----------------------------------------------------------------------


def _sized(exchanges: Iterable[Exchange]) -> tuple[list[Exchange], int]:
    """Those of a model, with token counts, which are estimated from texts where the engine told none; and how
    many have neither."""
    sized, left_out = [], 0
    for one in exchanges:
        if one.kind is not StageKind.CHAT:
            continue
        said = one.output.text if one.output is not None else ""
        prompt_tokens = one.prompt_tokens or round(len(one.body) / _CHARACTERS_PER_TOKEN)
        output_tokens = one.output_tokens or round(len(said) / _CHARACTERS_PER_TOKEN)
        if one.failed or not prompt_tokens or not output_tokens:
            left_out += 1
        else:
            sized.append(replace(one, prompt_tokens=prompt_tokens, output_tokens=output_tokens))
    return sized, left_out


def _characters_per_token(sized: Sequence[Exchange]) -> float:
    pairs = [(len(one.body), one.prompt_tokens) for one in sized if one.body]
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else _CHARACTERS_PER_TOKEN


def _lanes(sized: Iterable[Exchange]) -> Iterator[list[Exchange]]:
    """Requests that follow one another: a workflow's; of one whose requests overlap, those of one agent and
    at one time. Those without a workflow stand alone."""
    workflows: dict[tuple[str, ...], list[Exchange]] = {}
    for number, one in enumerate(sized):
        of = one.workflow_id or f"alone {number}"
        key = (one.tenant, one.workflow_type, of, "" if one.workflow_id else "alone")
        workflows.setdefault(key, []).append(one)
    for of_workflow in workflows.values():
        if _follow(of_workflow):
            yield of_workflow
            continue
        agents: dict[str, list[list[Exchange]]] = {}
        for one in of_workflow:
            lanes = agents.setdefault(one.agent_id, [])
            free = next((lane for lane in lanes if _done_ms(lane[-1]) <= one.at_ms), None)
            if free is None:
                lanes.append([one])
            else:
                free.append(one)
        yield from (lane for lanes in agents.values() for lane in lanes)


def _follow(exchanges: Sequence[Exchange]) -> bool:
    return all(_done_ms(a) <= b.at_ms for a, b in pairwise(exchanges))


def _done_ms(one: Exchange) -> float:
    return one.at_ms if one.done_ms is None else one.done_ms


# -- one request -------------------------------------------------------------------------------------------


def _call(one: Exchange, characters_per_token: float, before_s: float) -> Call:
    return Call(
        stage=one.stage or _OTHER,
        content=_content(one),
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        blocks=_blocks(one, characters_per_token),
        reads=one.reads or (),
        before_s=before_s,
    )


def _content(one: Exchange) -> str:
    """A request that has no reuse name is like no other: it samples, or may not be reused."""
    if one.name:
        return one.name
    if one.body and _is_greedy(one.body):
        return hashlib.sha256(one.tenant.encode() + b"\0" + one.body).hexdigest()
    return f"{one.workflow_id} {one.at_ms} {one.body_sha256 or hashlib.sha256(one.body).hexdigest()}"


def _is_greedy(body: bytes) -> bool:
    asked = _read(body)
    return asked.get("temperature") == 0 or asked.get("top_k") == 1


def _read(body: bytes) -> Mapping[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return asked if isinstance(asked, dict) else {}


def _blocks(one: Exchange, characters_per_token: float) -> tuple[Block, ...]:
    """Of the prompt, by its text in the order in which chat templates print it: prompts that begin alike have
    blocks alike."""
    asked = _read(one.body) if one.body else {}
    messages = asked.get("messages")
    if not isinstance(messages, list):
        return ()
    head = json.dumps(asked.get("tools"))
    text = "\x01".join((one.tenant, head, *map(json.dumps, messages))).encode()
    width = max(1, round(BLOCK_TOKENS * characters_per_token))
    chained, blocks = hashlib.blake2b(digest_size=8), []
    for begin in range(0, min(len(text), one.prompt_tokens // BLOCK_TOKENS * width) - width + 1, width):
        chained.update(text[begin : begin + width])
        blocks.append(int.from_bytes(chained.digest(), "big"))
    return tuple(blocks)


# -- a workflow --------------------------------------------------------------------------------------------


def _tools(exchanges: Iterable[Exchange]) -> Mapping[tuple[str, str, str], tuple[float, ...]]:
    """By workflow, when its tools were called."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in exchanges:
        if one.kind is StageKind.TOOL:
            found.setdefault((one.tenant, one.workflow_type, one.workflow_id), []).append(one.at_ms)
    return {key: tuple(times) for key, times in found.items()}


@dataclass(frozen=True, slots=True)
class _Pause:
    """Before a request; ``in_tools``: the workflow called one meanwhile."""

    seconds: float
    in_tools: bool


def _pauses(
    lane: Sequence[Exchange], tools: Mapping[tuple[str, str, str], tuple[float, ...]]
) -> list[_Pause]:
    found = [_Pause(0.0, in_tools=False)]
    for before, one in pairwise(lane):
        since_ms = _done_ms(before)
        used = tools.get((one.tenant, one.workflow_type, one.workflow_id), ())
        in_tools = any(since_ms <= at <= one.at_ms for at in used)
        found.append(_Pause(max(0.0, one.at_ms - since_ms) / 1000, in_tools))
    return found


def _turns(
    lane: Sequence[Exchange],
    steps: Sequence[Step],
    pauses: Sequence[_Pause],
    template: Template,
    think_s: float,
) -> tuple[Turn, ...]:
    """A turn begins where a person was waited for: a request tells a pick, or nothing else happened for long.
    Any other pause is a tool's or the harness's own, and counts."""
    waited = {point.name for point in template.decision_points if point.window is Window.WAIT}
    turns: list[Turn] = []
    open_steps: list[Step] = []
    gap_s = 0.0
    for one, step, pause in zip(lane, steps, pauses, strict=True):
        picked = any(selection.decision_point in waited for selection in one.selections)
        thinks = picked or (pause.seconds >= think_s and not pause.in_tools)
        if open_steps and pause.seconds and thinks:
            turns.append(Turn(tuple(open_steps), gap_s))
            open_steps, gap_s = [replace(step, call=replace(step.call, before_s=0.0))], pause.seconds
        else:
            open_steps.append(replace(step, call=replace(step.call, before_s=pause.seconds)))
    return (*turns, Turn(tuple(open_steps), gap_s))


def _notes(
    exchanges: Sequence[Exchange],
    sized: Sequence[Exchange],
    lanes: Sequence[Sequence[Exchange]],
    left_out: int,
    decisions: Decided,
) -> Iterator[str]:
    yield f"{len(sized)} requests in {len(lanes)} sequences"
    if left_out:
        yield f"{left_out} requests without an answer or token counts are left out"
    workflows = {(one.tenant, one.workflow_type, one.workflow_id) for one in sized if one.workflow_id}
    alone = sum(not one.workflow_id for one in sized)
    if split := len(lanes) - len(workflows) - alone:
        yield f"workflows whose requests overlap are replayed as {split} sequences more"
    if alone:
        yield f"{alone} requests tell no workflow: each stands alone"
    tools = sum(one.kind is StageKind.TOOL for one in exchanges)
    if tools:
        yield f"{tools} tool calls are pauses of the length that they had"
    if not any(one.body for one in sized):
        yield "bodies were not kept: no prompt shares its beginning with another"
    if decisions:
        yield f"{len(decisions)} decisions, foretold by what was selected before them"
