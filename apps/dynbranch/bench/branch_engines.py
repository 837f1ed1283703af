"""Routing before two simulated engines, so that the result does not depend on this machine's cores.

Answers are as long as makes the decode of a decision take 0.36 to 0.77 of what runs after it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench.acting import MODEL, acted, cut_into
from dynbranch.bench.result import BenchFailed, Tell
from dynbranch.demo.branch_arms import WRONG, write_templates
from dynbranch.demo.branch_runs import interleaved, pauses
from dynbranch.demo.flows import ROUTING_CHAIN
from dynbranch.demo.measures import Figure, ratio
from dynbranch.demo.playing import Played, Player
from dynbranch.demo.rehearsal import Performance, model_says, performances
from dynbranch.demo.stack import Stack
from dynbranch.enginemodel.parameters import preset
from dynbranch.stub_engine.matching import RequestView
from dynbranch.stub_engine.script import Reply

PRESET = "rtx4090-qwen3-8b"
ARGUMENTS_TOKENS, EXECUTE_TOKENS, AGGREGATE_TOKENS = 36, 44, 40
SHORTEST, LONGEST = 0.40, 0.72
"""Of a decode over what runs after it, in tokens. What services and prefills add stays within the claim."""
WARM_UPS = 20
AT_ONCE = 4
"""Of 16 slots: each request has about the time that it would have alone."""


@dataclass(frozen=True, slots=True)
class Simulated:
    figures: Mapping[str, Figure]
    raw: Any


async def two_engines(tell: Tell, records: int) -> Simulated:
    """Raises BenchFailed."""
    with TemporaryDirectory(prefix="dynbranch-bench-") as name:
        tell("two simulated engines", 0, records)
        async with acted(
            Path(name), engines=2, latency=preset(PRESET), writer=_writer, policy="static", slots=8
        ) as stack:
            await _warm(stack)
            pairs = []
            for number, _ in enumerate(_records(records)):
                tell("two simulated engines", number, records)
                ways = ["floor", "ahead"] if number % 2 else ["ahead", "floor"]
                played = {way: await _play(stack, way, number) for way in ways}
                if not played["ahead"].equals(played["floor"]):
                    raise BenchFailed("on simulated engines a result differs from the floor's")
                pairs.append((played["ahead"], played["floor"]))
    over = ratio([(ahead.latency_ms, floor.latency_ms) for ahead, floor in pairs])
    ratios = [found for _, floor in pairs for found in _windows(floor)]
    return Simulated(
        {
            "routing_reduction_two_engines_c1_off": Figure(
                1 - over.value, 1 - over.ci_high, 1 - over.ci_low, over.n
            )
        },
        {
            "preset": PRESET,
            "decode_over_execution": {"least": min(ratios), "most": max(ratios), "n": len(ratios)},
            "pairs": [[round(ahead.latency_ms, 1), round(floor.latency_ms, 1)] for ahead, floor in pairs],
            "outcomes": [[step.outcome for step in ahead.steps] for ahead, _ in pairs],
        },
    )


async def never_right(tell: Tell, records: Mapping[str, int], rounds: int) -> Simulated:
    """What a predictor costs that is never right, on the same engines: each of ``records`` of each kind
    ``rounds`` times, each time once without DynBranch. Raises BenchFailed.

    ``AT_ONCE`` workflows run side by side, half of them with and half without; then each the other way.
    """
    chosen = [(kind, place, turn) for turn in range(rounds) for kind, place in interleaved(records)]
    pairs: list[tuple[str, Played, Played]] = []
    with TemporaryDirectory(prefix="dynbranch-bench-") as name:
        write_templates(Path(name, "templates"), (WRONG,))
        async with acted(
            Path(name, "stack"),
            engines=2,
            latency=preset(PRESET),
            writer=_writer,
            policy="priced",
            templates=Path(name, "templates"),
            slots=8,
        ) as stack:
            for at in range(0, len(chosen), AT_ONCE):
                tell("a predictor that is never right", at, len(chosen))
                pairs += await _beside_one_another(stack, chosen[at : at + AT_ONCE])
    worked = [(ahead.latency_ms, floor.latency_ms) for _, ahead, floor in pairs]
    return Simulated(
        {"always_wrong_mean_over_floor": ratio(worked)},
        {
            "preset": PRESET,
            "policy": "priced",
            "at_once": AT_ONCE,
            "pairs": [
                [kind, round(ahead.latency_ms, 1), round(floor.latency_ms, 1)] for kind, ahead, floor in pairs
            ],
        },
    )


async def _beside_one_another(
    stack: Stack, chosen: Sequence[tuple[str, int, int]]
) -> list[tuple[str, Played, Played]]:
    """Of each: its kind, and how it went with and without."""
    played: list[dict[str, Played]] = [{} for _ in chosen]
    for turned in (0, 1):
        ways = ["ahead" if (number + turned) % 2 else "floor" for number in range(len(chosen))]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_play_wrong(stack, way, *one), name=f"play {way} {one}")
                for way, one in zip(ways, chosen, strict=True)
            ]
        for of, way, task in zip(played, ways, tasks, strict=True):
            of[way] = task.result()
    if not all(of["ahead"].equals(of["floor"]) for of in played):
        raise BenchFailed("on simulated engines a result differs from the floor's")
    return [(kind, of["ahead"], of["floor"]) for (kind, _, _), of in zip(chosen, played, strict=True)]


async def _play_wrong(stack: Stack, way: str, kind: str, place: int, turn: int) -> Played:
    """As ``_play``, with a person's pauses where the workflow has them."""
    performance = [one for one in performances(MODEL) if one.workflow_type == kind][place]
    workflow = f"wrong-{turn}-{way}-{kind}-{place}"
    async with Player(stack.url if way == "ahead" else stack.floor_url, key=workflow) as player:
        return await player.play(
            performance,
            workflow_id=workflow,
            workflow_type=kind + WRONG.suffix,
            pause_s=pauses(kind, performance.record),
        )


def _records(count: int) -> list[Performance]:
    return list(islice((one for one in performances(MODEL) if one.workflow_type == ROUTING_CHAIN), count))


async def _play(stack: Stack, way: str, number: int, label: str = "") -> Played:
    """A key of its own each time: nothing but what runs ahead can help."""
    workflow = f"{label}{way}-{number}"
    async with Player(stack.url if way == "ahead" else stack.floor_url, key=workflow) as player:
        return await player.play(_records(number + 1)[number], workflow_id=workflow)


async def _warm(stack: Stack) -> None:
    last = len(_records(1_000)) - 1
    for number in range(WARM_UPS):
        played = await _play(stack, "ahead", last, f"warm{number}")
        if any(step.outcome == "promoted" for step in played.steps):
            return
    raise BenchFailed("nothing runs ahead on simulated engines")


def _windows(floor: Played) -> list[float]:
    """Of each decision: its decode over what ran after it."""
    found, decode_ms, after_ms = [], 0.0, 0.0
    for step in floor.steps:
        match step.stage:
            case "route":
                decode_ms = step.latency_ms
            case "arguments":
                after_ms = step.latency_ms
            case "execute":
                found.append(round(decode_ms / (after_ms + step.latency_ms), 3))
    return found


def _writer(view: RequestView) -> Reply:
    text = model_says(view.body)
    form = (view.body.get("response_format") or {}).get("json_schema", {}).get("name")
    match form:
        case "route":
            drawn = hashlib.sha256(json.dumps(view.messages).encode()).digest()[0] / 255
            over = SHORTEST + (LONGEST - SHORTEST) * drawn
            tokens = round(over * (ARGUMENTS_TOKENS + EXECUTE_TOKENS))
        case "arguments":
            tokens = ARGUMENTS_TOKENS
        case _ if "sentences" in str(view.messages[0].get("content")):
            tokens = AGGREGATE_TOKENS
        case _:
            tokens = EXECUTE_TOKENS
    # Blanks after JSON are JSON.
    text = text.ljust(tokens)
    return Reply(text=text, chunks=cut_into(text, tokens))
