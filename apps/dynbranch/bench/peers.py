"""What other gateways cost, and a proxy that does nothing, before the same stub engine in the same run.

Each has one worker, all have the same core; the load and the engine have the other. CPU time is the sturdy
column on a busy machine.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dynbranch.bench import prompts
from dynbranch.bench.pages import page_with
from dynbranch.bench.peer_installs import LITELLM, VLLM_ROUTER, PeerMissing
from dynbranch.bench.result import Measured, Tell
from dynbranch.bench.stand import Arm, Measurement, Stand, percentile, turns
from dynbranch.demo.measures import Figure, median

ROUNDS = 5
ALONE_S, CROWD_S = 1.0, 1.2
CROWD = 32
STREAMS, STREAM_TOKENS = 8, 100
NAMES = 64
PLACE = "bench peers"
"""Of the table in its page."""
_FEWEST_HITS = 0.99
_WARM_S, _WARM_LIMIT_S = 0.7, 60.0
_APART = 10_000_000

Round = dict[str, dict[str, float]]
COLUMNS = {
    "cpu_us_per_request": "µs/req",
    "cpu_per_request_over_plain_proxy": "× plain",
    "cpu_us_per_token": "µs/tok",
    "cpu_per_token_over_plain_proxy": "× plain",
    "added_p50_ms": "+p50 ms",
    "added_p99_ms": "+p99 ms",
    "per_s": "req/s",
}


@dataclass(frozen=True, slots=True)
class Way:
    """An arm, and what is asked of it. ``repeats``: the same few requests again and again."""

    arm: Arm
    body: Mapping[str, object]
    repeats: bool = False
    streams: bool = True


def measure(tell: Tell, *, rounds: int = ROUNDS) -> Measured:
    with (
        TemporaryDirectory(prefix="dynbranch-peers-") as folder,
        Stand(Path(folder), tell, pinned=True) as stand,
    ):
        ways, missing = _ways(stand)
        found = Peers(stand, ways, tell)
        found.warm_up()
        seen = [found.round(number, rounds) for number in range(rounds)]
    raw = {
        "conditions": prompts.CONDITIONS
        | {
            "clients": f"1 for latencies, {CROWD} for requests per second and CPU per request",
            "streams": f"{STREAMS} of {STREAM_TOKENS} tokens",
            "versions": {peer.name: peer.version for peer in (LITELLM, VLLM_ROUTER)},
        },
        "rounds": seen,
    }
    return Measured(figures(seen), raw, missing + failures(seen), table(seen))


def _ways(stand: Stand) -> tuple[dict[str, Way], tuple[str, ...]]:
    sampled, greedy = prompts.sampled(prompts.SHORT_TOKENS), prompts.greedy(prompts.SHORT_TOKENS)
    engine = stand.engine(prompts.RULES)
    ways = {"direct": Way(engine, sampled), "plain proxy": Way(stand.plain(engine), sampled)}
    dynbranch, stack = stand.dynbranch(engine)
    with_store = replace(dynbranch, pids={**dynbranch.pids, "csl": stack.pids["csl"]})
    ways["DynBranch, sampled"] = Way(dynbranch, sampled)
    ways["DynBranch, miss"] = Way(with_store, greedy, streams=False)
    ways["DynBranch, hit"] = Way(with_store, greedy, repeats=True, streams=False)
    missing = []
    others: dict[str, Callable[[], Way]] = {
        "LiteLLM": lambda: Way(stand.litellm(engine, prompts.MODEL, cache=False), sampled),
        "LiteLLM, cache hit": lambda: Way(
            stand.litellm(engine, prompts.MODEL, cache=True), greedy, repeats=True, streams=False
        ),
        "vllm-router": lambda: Way(stand.vllm_router(engine), sampled),
    }
    for name, start in others.items():
        try:
            ways[name] = start()
        except PeerMissing as error:
            missing.append(f"{name} is not in the table: {error}")
    return ways, tuple(missing)


class Peers:
    """One round after the other over the same ways."""

    def __init__(self, stand: Stand, ways: Mapping[str, Way], tell: Tell) -> None:
        self._stand = stand
        self._ways = ways
        self._tell = tell
        self._numbers = 0

    def warm_up(self) -> None:
        self._tell("warming up", 0, 0)
        for way in self._ways.values():
            if way.repeats:
                self._closed(way, _WARM_LIMIT_S, 4, most=NAMES)
            for concurrency in (1, CROWD):
                self._closed(way, _WARM_S, concurrency)

    def round(self, number: int, rounds: int) -> Round:
        found: Round = {name: {} for name in self._ways}
        for name in turns(list(self._ways), number):
            way = self._ways[name]
            self._tell(name, number, rounds)
            alone = self._closed(way, ALONE_S, 1).seen
            ms = alone.whole_ms
            found[name] |= {"p50_ms": statistics.median(ms), "p99_ms": percentile(ms, 0.99)}
            if way.repeats:
                found[name]["hit_share"] = alone.outcomes.get("hit", 0) / alone.requests
            crowd = self._closed(way, CROWD_S, CROWD)
            found[name] |= {"per_s": crowd.per_s, "cpu_us_per_request": crowd.cpu_us_per_request}
            if way.streams:
                job = self._stand.streams(way.arm, prompts.paced(STREAM_TOKENS), STREAMS, first=self._next())
                each = self._stand.run(way.arm, job).cpu_us_each(STREAMS * STREAM_TOKENS)
                found[name]["cpu_us_per_token"] = sum(each.values())
        for seen in found.values():
            for share in ("p50", "p99"):
                seen[f"added_{share}_ms"] = seen[f"{share}_ms"] - found["direct"][f"{share}_ms"]
            for what in ("request", "token"):
                if f"cpu_us_per_{what}" in seen:
                    plain = found["plain proxy"][f"cpu_us_per_{what}"]
                    seen[f"cpu_per_{what}_over_plain_proxy"] = seen[f"cpu_us_per_{what}"] / plain
        return found

    def _closed(self, way: Way, seconds: float, concurrency: int, most: int = sys.maxsize) -> Measurement:
        first, cycle = (0, NAMES) if way.repeats else (self._next(), 0)
        job = self._stand.closed(way.arm, way.body, seconds, concurrency, first=first, cycle=cycle, most=most)
        return self._stand.run(way.arm, job)

    def _next(self) -> int:
        self._numbers += _APART
        return self._numbers


def figures(rounds: Sequence[Round]) -> dict[str, Figure]:
    """One for each cell of the table; the key is the way's name and the column's."""
    found = {}
    for name, first in rounds[0].items():
        for column in COLUMNS:
            if column in first and not (name == "direct" and column.startswith("added_")):
                key = f"{name.lower().replace(',', '').replace(' ', '_').replace('-', '_')}.{column}"
                found[key] = median([one[name][column] for one in rounds])
    return found


def table(rounds: Sequence[Round]) -> tuple[tuple[str, ...], ...]:
    """Medians over the rounds: a row of headings, then one for each way."""
    rows = [("way", *COLUMNS.values())]
    for name, first in rounds[0].items():
        cells = (
            _short(statistics.median([one[name][column] for one in rounds])) if column in first else "–"
            for column in COLUMNS
        )
        rows.append((name, *cells))
    return tuple(rows)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2f}"


def failures(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Hits that were none would be the price of something else."""
    return tuple(
        f"round {number}, {name}: only {seen['hit_share']:.0%} of the answers were hits"
        for number, one in enumerate(rounds)
        for name, seen in one.items()
        if seen.get("hit_share", 1.0) < _FEWEST_HITS
    )


def main() -> None:
    """``python -m dynbranch.bench.peers RESULT PAGE``: the result's table into the page."""
    result, page = Path(sys.argv[1]), Path(sys.argv[2])
    rounds = json.loads(result.read_text(encoding="utf-8"))["raw"]["rounds"]
    page.write_text(page_with(page.read_text(encoding="utf-8"), PLACE, table(rounds)), encoding="utf-8")


if __name__ == "__main__":
    main()
