"""Where requests go when several engines hold different beginnings of prompts.

The same arrivals go over five ways to the same four stub engines, whose prefix cache and times are those of
the engine model: DynBranch, two gateways of it that take turns, vllm-router with its cache-aware policy,
least in flight alone, round robin.
Then one engine of four dies, or answers nothing any more.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from dynbranch.bench.peer_installs import VLLM_ROUTER, PeerMissing, versions
from dynbranch.bench.result import Measured, Tell
from dynbranch.bench.routing_arrivals import ArrivalAt, Workload, arrivals
from dynbranch.bench.routing_fleet import ENGINES, KV_TOKENS, MODEL, PRESET, Fleet, Way
from dynbranch.bench.stand import percentile, turns
from dynbranch.demo.measures import Figure, exact, median, ratio

REPETITIONS = 6
FAULT_REPETITIONS = 4
FAULTS: Mapping[str, Mapping[str, object] | None] = {
    "healthy": None,
    "dead": {"kind": "refuse", "for_s": 15.0},
    "mute": {"kind": "hang", "for_s": 30.0},
}
"""Dead: connections are cut and refused. Mute: they are taken, and nothing is ever said."""

_WARM_SHARE = 0.2
_PATIENCE_S = 20.0
_SEED = 4_000
_OURS, _TWO, _ROUTER = "dynbranch", "dynbranch two gateways", "vllm-router"
_LEAST, _ROUND_ROBIN = "least in flight", "round robin"

GENTLE = Workload(
    requests=240, per_s=16.0, families=24, instructions_bytes=(500, 2_000), question_bytes=(100, 600)
)
"""So few that three engines carry it, too: what is compared is the harm, and not the lost capacity."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. ``cached_tokens`` of ``prompt_tokens`` were read from the engine's prefix cache."""

    number: int
    status: int
    ms: float
    prompt_tokens: int = 0
    cached_tokens: int = 0


def measure(
    tell: Tell, *, repetitions: int = REPETITIONS, fault_repetitions: int = FAULT_REPETITIONS
) -> Measured:
    workload = Workload()
    with TemporaryDirectory(prefix="dynbranch-routing-") as folder, Fleet(Path(folder), tell) as fleet:
        ours = fleet.gateway(_OURS, "prefix")
        ways = [
            ours,
            fleet.gateway(_TWO, "prefix", count=2),
            fleet.gateway(_LEAST, "least_in_flight"),
        ]
        missing: tuple[str, ...] = ()
        try:
            ways += [
                fleet.vllm_router(_ROUTER, "cache_aware"),
                fleet.vllm_router(_ROUND_ROBIN, "round_robin"),
            ]
        except PeerMissing as error:
            missing = (f"no figure against vllm-router: {error}",)
        runs = [_compared(fleet, ways, workload, number, repetitions, tell) for number in range(repetitions)]
        harmed = [
            _harmed(fleet, ours, number, fault_repetitions, tell) for number in range(fault_repetitions)
        ]
    raw = {
        "conditions": {
            "engines": ENGINES,
            "latency model": PRESET,
            "KV tokens an engine": KV_TOKENS,
            "block of the engines' prefix cache": 16,
            "workload": workload.as_json(),
            "workload with a fault": GENTLE.as_json(),
            "first seed": _SEED,
            "not counted": f"the first {_WARM_SHARE:.0%} of a run's requests",
            "round robin": "vllm-router's",
        },
        "vllm-router": [] if missing else versions(VLLM_ROUTER),
        "runs": runs,
        "faults": harmed,
    }
    return Measured(figures(runs, harmed), raw, missing)


def figures(runs: Sequence[Mapping[str, Any]], harmed: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for name in runs[0]:
        key = name.replace(" ", "_").replace("-", "_")
        for what in ("hit_share", "p50_ms", "p99_ms"):
            found[f"{key}_{what}"] = median([run[name][what] for run in runs])
    for name in runs[0]:
        if name != _OURS:
            key = name.replace(" ", "_").replace("-", "_")
            found[f"hit_share_over_{key}"] = ratio(
                [(run[_OURS]["hit_share"], run[name]["hit_share"]) for run in runs]
            )
            found[f"p99_over_{key}"] = ratio(
                [(run[_OURS]["p99_ms"], run[name]["p99_ms"]) for run in runs], statistics.median
            )
    for name in ("dead", "mute"):
        pairs = [(run[name]["p99_ms"], run["healthy"]["p99_ms"]) for run in harmed]
        found[f"elsewhere_p99_{name}_over_healthy"] = ratio(pairs, statistics.median)
        unanswered, asked = (sum(run[name][key] for run in harmed) for key in ("unanswered", "requests"))
        found[f"unanswered_{name}"] = exact(unanswered, asked)
    return found


def _compared(
    fleet: Fleet, ways: Sequence[Way], workload: Workload, number: int, of: int, tell: Tell
) -> dict[str, Any]:
    """One seed over every way, for each in a dialect of its own: gateways hear of one another's prompts, and
    the engines forget between two ways."""
    found = {}
    for way in turns(ways, number):
        tell(way.name, number, of)
        fleet.reset()
        sent = arrivals(workload, model=MODEL, seed=_SEED + number, dialect=ways.index(way))
        found[way.name] = summary(asyncio.run(play(way, sent)), int(_WARM_SHARE * len(sent)))
    return {way.name: found[way.name] for way in ways}


def _harmed(fleet: Fleet, way: Way, number: int, of: int, tell: Tell) -> dict[str, Any]:
    """One seed with all engines, with one dead, with one mute."""
    found = {}
    for what in turns(list(FAULTS), number):
        tell(f"one engine: {what}", number, of)
        fleet.reset()
        dialect = list(FAULTS).index(what)
        sent = arrivals(GENTLE, model=MODEL, seed=2 * _SEED + number, dialect=dialect)
        found[what] = asyncio.run(_with_fault(fleet, way, sent, FAULTS[what]))
    return found


async def _with_fault(
    fleet: Fleet, way: Way, sent: list[ArrivalAt], fault: Mapping[str, object] | None
) -> dict[str, Any]:
    """The fault comes after a third of the run; what is looked at comes after it."""
    at = len(sent) // 3
    playing = asyncio.create_task(play(way, sent))
    await asyncio.sleep(sent[at].at_s)
    if fault is not None:
        await asyncio.to_thread(fleet.harm_busiest, fault)
    seen = await playing
    await asyncio.to_thread(fleet.reset)
    await asyncio.to_thread(fleet.wait_whole, way)
    return summary(seen, at)


async def play(way: Way, sent: Sequence[ArrivalAt]) -> list[Seen]:
    """Each request at its time, whether or not others are answered."""
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers={"content-type": "application/json"}
    ) as http:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_ask(http, way.url(one.number), one, began)) for one in sent]
    return [task.result() for task in asked]


async def _ask(http: aiohttp.ClientSession, url: str, one: ArrivalAt, began: float) -> Seen:
    await asyncio.sleep(began + one.at_s - time.monotonic())
    asked = time.perf_counter()
    try:
        async with http.post(f"{url}/v1/chat/completions", data=one.body) as response:
            answer, status = await response.read(), response.status
    except (aiohttp.ClientError, TimeoutError):
        return Seen(one.number, 0, (time.perf_counter() - asked) * 1000)
    seen = Seen(one.number, status, (time.perf_counter() - asked) * 1000)
    if status != 200:
        return seen
    usage = json.loads(answer)["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return replace(
        seen, prompt_tokens=usage["prompt_tokens"], cached_tokens=details.get("cached_tokens") or 0
    )


def summary(seen: Sequence[Seen], first: int) -> dict[str, Any]:
    """Of the requests from number ``first`` on."""
    counted = [one for one in seen if one.number >= first]
    served = [one for one in counted if one.status == 200]
    prompt_tokens = sum(one.prompt_tokens for one in served)
    return {
        "requests": len(counted),
        "unanswered": len(counted) - len(served),
        "hit_share": sum(one.cached_tokens for one in served) / max(1, prompt_tokens),
        "prompt_tokens": prompt_tokens,
        "p50_ms": percentile([one.ms for one in served], 0.5),
        "p99_ms": percentile([one.ms for one in served], 0.99),
    }
