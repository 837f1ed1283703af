"""What it costs to stand in the way of a request that nothing can be reused for.

Sampled requests of 16 tokens pass gateway and engine agent, before the same stub engine and in the same run
as the engine alone, a proxy that does nothing, and LiteLLM. What is measured has one core, the load and the
engine the other. Then greedy requests while the store is dead, and while it hangs.
"""

from __future__ import annotations

import signal
import statistics
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench import prompts
from dynbranch.bench.peer_installs import LITELLM, PeerMissing, versions
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.bench.stand import Arm, Measurement, Stand, percentile, together, turns
from dynbranch.demo.measures import Figure, median, ratio
from dynbranch.demo.stack import Stack

ROUNDS = 16
"""Many and short: a shared machine's cores change their speed twofold from second to second."""

STORELESS_ROUNDS = 7
ALONE_S, CROWD_S, STORELESS_S = 0.6, 0.4, 5.0
SLICES = 3
"""Of a crowd's time in each round: what is compared takes turns within a second or two."""

CROWD, STORELESS_CROWD = 32, 1
STREAMS, STREAM_TOKENS = 32, 200
_WARM_S = 0.7
_APART = 10_000_000
"""Numbers of requests that no two jobs share."""

Round = dict[str, Any]


def measure(tell: Tell, *, rounds: int = ROUNDS, storeless_rounds: int = STORELESS_ROUNDS) -> Measured:
    with (
        TemporaryDirectory(prefix="dynbranch-pass-") as folder,
        Stand(Path(folder), tell, pinned=True) as stand,
    ):
        engine = stand.engine(prompts.RULES)
        arms = {"direct": engine, "plain": stand.plain(engine)}
        arms["dynbranch"], stack = stand.dynbranch(engine)
        missing: tuple[str, ...] = ()
        try:
            arms["litellm"] = stand.litellm(engine, prompts.MODEL, cache=False)
        except PeerMissing as error:
            missing = (f"no figure against LiteLLM: {error}",)
        found = PassThrough(stand, arms, tell)
        found.warm_up()
        seen = [found.round(number, rounds) for number in range(rounds)]
        storeless = [found.storeless(stack, number, storeless_rounds) for number in range(storeless_rounds)]
        raw = {
            "conditions": prompts.CONDITIONS
            | {"cores": "one measured, one for load and engine" if stand.cores.load else "one for all"},
            "litellm": [] if missing else versions(LITELLM),
            "store_down_conditions": f"{STORELESS_CROWD} client for {STORELESS_S} s from the moment on",
            "rounds": seen,
            "store_down": storeless,
        }
        return Measured(figures(seen, storeless), raw, missing)


class PassThrough:
    """One round after the other over the same arms."""

    def __init__(self, stand: Stand, arms: Mapping[str, Arm], tell: Tell) -> None:
        self._stand = stand
        self._arms = arms
        self._tell = tell
        self._first = 0

    def warm_up(self) -> None:
        self._tell("warming up", 0, 0)
        for arm in self._arms.values():
            for concurrency in (1, CROWD):
                self._closed(arm, _WARM_S, concurrency)

    def round(self, number: int, rounds: int) -> Round:
        """Alone, in a crowd, streaming: each kind over all arms before the next."""
        alone: Round = {}
        for name in turns(list(self._arms), number):
            self._tell(f"{name}, one client", number, rounds)
            alone[name] = latencies(self._closed(self._arms[name], ALONE_S, 1))
        crowds: dict[str, list[Measurement]] = {name: [] for name in self._arms}
        for piece in range(SLICES):
            for name in turns(list(self._arms), number + piece):
                self._tell(f"{name}, {CROWD} clients", number, rounds)
                crowds[name].append(self._closed(self._arms[name], CROWD_S, CROWD))
        crowd: Round = {name: prices(together(pieces)) for name, pieces in crowds.items()}
        streams: Round = {}
        # A streamed token costs LiteLLM about a millisecond: so many streams are more than it carries.
        for name in turns([name for name in self._arms if name != "litellm"], number):
            self._tell(f"{name}, {STREAMS} streams", number, rounds)
            job = self._stand.streams(
                self._arms[name], prompts.paced(STREAM_TOKENS), STREAMS, first=self._next()
            )
            streams[name] = stream_prices(self._stand.run(self._arms[name], job), STREAMS * STREAM_TOKENS)
        return {"alone": alone, "crowd": crowd, "streams": streams}

    def storeless(self, stack: Stack, number: int, rounds: int) -> Round:
        """Greedy requests from the moment on at which the store hangs, or is dead."""
        found: Round = {}
        for what in turns(["direct", "hanging", "dead"], number):
            self._tell(f"greedy requests, store: {what}", number, rounds)
            if what == "hanging":
                stack.send("csl", signal.SIGSTOP)
            elif what == "dead":
                stack.send("csl", signal.SIGKILL)
            arm = self._arms["direct" if what == "direct" else "dynbranch"]
            found[what] = latencies(
                self._closed(arm, STORELESS_S, STORELESS_CROWD, body=prompts.greedy(prompts.SHORT_TOKENS))
            )
            if what == "hanging":
                stack.send("csl", signal.SIGCONT)
            elif what == "dead":
                stack.start_again("csl")
            if what != "direct":
                self._until_stored(arm)
        return found

    def _until_stored(self, arm: Arm) -> None:
        """The store answers again: the same request, asked for a while, is a hit."""
        for _ in range(60):
            job = self._stand.closed(
                arm, prompts.greedy(prompts.SHORT_TOKENS), 0.5, 1, first=self._next(), cycle=1, most=20
            )
            if self._stand.run(arm, job).seen.outcomes.get("hit"):
                return
        raise BenchFailed("the store did not come back")

    def _closed(
        self, arm: Arm, seconds: float, concurrency: int, body: Mapping[str, object] | None = None
    ) -> Measurement:
        job = self._stand.closed(
            arm, body or prompts.sampled(prompts.SHORT_TOKENS), seconds, concurrency, first=self._next()
        )
        return self._stand.run(arm, job)

    def _next(self) -> int:
        self._first += _APART
        return self._first


def latencies(found: Measurement) -> dict[str, Any]:
    ms = found.seen.whole_ms
    return {
        "requests": len(ms),
        "p50_ms": statistics.median(ms),
        "p99_ms": percentile(ms, 0.99),
        "max_ms": max(ms),
        "cpu_us_per_request": found.cpu_us_per_request,
        "cpu_us_per_request_of": found.cpu_us_each(found.seen.requests),
    }


def prices(found: Measurement) -> dict[str, Any]:
    return latencies(found) | {"per_s": found.per_s}


def stream_prices(found: Measurement, tokens: int) -> dict[str, Any]:
    gaps = found.seen.gaps_ms
    each = found.cpu_us_each(tokens)
    return {
        "gap_p50_ms": statistics.median(gaps),
        "gap_p99_ms": percentile(gaps, 0.99),
        "gap_max_ms": max(gaps),
        "first_byte_p50_ms": statistics.median(found.seen.first_byte_ms),
        "cpu_us_per_token": sum(each.values()),
        "cpu_us_per_token_of": each,
    }


def figures(rounds: list[Round], storeless: list[Round]) -> dict[str, Figure]:
    def added(part: str, key: str) -> list[float]:
        return [one[part]["dynbranch"][key] - one[part]["direct"][key] for one in rounds]

    def over(part: str, key: str, other: str) -> Figure:
        pairs = [(one[part]["dynbranch"][key], one[part][other][key]) for one in rounds]
        return ratio(pairs, statistics.median)

    def paired(part: str, key: str, other: str) -> Figure:
        """Each round's own ratio: what was measured within seconds had much the same core."""
        return median([one[part]["dynbranch"][key] / one[part][other][key] for one in rounds])

    found = {
        "added_p50_ms": median(added("alone", "p50_ms")),
        "added_p99_ms": median(added("alone", "p99_ms")),
        "requests_per_s_c32": median([one["crowd"]["dynbranch"]["per_s"] for one in rounds]),
        "cpu_us_per_request": median([one["crowd"]["dynbranch"]["cpu_us_per_request"] for one in rounds]),
        "cpu_us_per_token": median([one["streams"]["dynbranch"]["cpu_us_per_token"] for one in rounds]),
        "cpu_per_request_over_plain_proxy": paired("crowd", "cpu_us_per_request", "plain"),
        "cpu_per_token_over_plain_proxy": paired("streams", "cpu_us_per_token", "plain"),
        "inter_token_added_p99_ms": median(added("streams", "gap_p99_ms")),
        "csl_down_longest_ms": median(
            [max(one["hanging"]["max_ms"], one["dead"]["max_ms"]) for one in storeless]
        ),
        "csl_down_added_p99_ms": median(
            [
                max(one["hanging"]["p99_ms"], one["dead"]["p99_ms"]) - one["direct"]["p99_ms"]
                for one in storeless
            ]
        ),
    }
    if "litellm" in rounds[0]["alone"]:
        litellm = [one["alone"]["litellm"]["p50_ms"] - one["alone"]["direct"]["p50_ms"] for one in rounds]
        found |= {
            "requests_per_s_over_litellm": over("crowd", "per_s", "litellm"),
            "added_p50_over_litellm": ratio(
                list(zip(added("alone", "p50_ms"), litellm, strict=True)), statistics.median
            ),
        }
    return found
