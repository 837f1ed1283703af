"""What a hit costs, HTTP to HTTP, alone, in a crowd, streamed, and while a write fells ten thousand entries.

Every service, the stub engine and the load share the machine's cores. LiteLLM answers the same requests from
its own in-memory cache in the same run.
"""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench import prompts
from dynbranch.bench.csl_scale import load, tree
from dynbranch.bench.peer_installs import LITELLM, PeerMissing, versions
from dynbranch.bench.result import Measured, Tell
from dynbranch.bench.stand import Arm, Measurement, Stand, percentile, turns
from dynbranch.demo.measures import Figure, median, ratio

ROUNDS = 9
ALONE_S, CROWD_S, STREAM_S = 1.5, 2.5, 1.0
CROWD, CASCADE_CROWD = 32, 8
NAMES, LARGE_NAMES = 64, 8
DEPENDANTS = 10_000
SMALL_TOKENS = 1024 // prompts.TOKEN_BYTES
LARGE_TOKENS = 16 * 1024 // prompts.TOKEN_BYTES
_WARM_S, _WARM_LIMIT_S = 1.0, 60.0
_BEFORE_WRITE_S, _CASCADE_S = 0.7, 3.0
_WRITE_TIMEOUT_S = 30.0
_FEWEST_DURING = 30
_FEWEST_HITS = 0.99
"""A demand that the store does not answer within its budget is executed: slow, and counted, but not wrong."""

Round = dict[str, Any]


def measure(tell: Tell, *, rounds: int = ROUNDS) -> Measured:
    with TemporaryDirectory(prefix="dynbranch-hit-") as folder:
        data = Path(folder, "data")
        tell("entries are put", 0, 0)
        # A write fells its own record's dependants, so each round has a record of its own.
        load(
            data / "csl",
            chain.from_iterable(tree(DEPENDANTS, _record(number)) for number in range(rounds)),
            _nothing,
        )
        with Stand(Path(folder), tell, pinned=False) as stand:
            engine = stand.engine(prompts.RULES)
            arms: dict[str, Arm] = {}
            arm, stack = stand.dynbranch(engine, data)
            arms["dynbranch"] = replace(arm, pids={name: stack.pids[name] for name in ("gateway", "csl")})
            missing: tuple[str, ...] = ()
            try:
                arms["litellm"] = stand.litellm(engine, prompts.MODEL, cache=True)
            except PeerMissing as error:
                missing = (f"no figure against LiteLLM: {error}",)
            hits = Hits(stand, arms, tell)
            hits.warm_up()
            seen = [hits.round(number, rounds) for number in range(rounds)]
        raw = {
            "conditions": prompts.CONDITIONS
            | {
                "result": f"{SMALL_TOKENS} tokens, {SMALL_TOKENS * prompts.TOKEN_BYTES} bytes",
                "stream": f"{LARGE_TOKENS} tokens, {LARGE_TOKENS * prompts.TOKEN_BYTES} bytes",
                "names": NAMES,
                "crowd_during_cascade": CASCADE_CROWD,
                "dependants": DEPENDANTS,
                "cores": "all services, engine and load share all",
            },
            "litellm": [] if missing else versions(LITELLM),
            "rounds": seen,
        }
        return Measured(figures(seen), raw, missing + failures(seen))


def _record(number: int) -> str:
    return f"docs/tree-{number}"


def _nothing(done: int) -> None:
    """Loading takes seconds."""


class Hits:
    """One round after the other over the same stored entries."""

    def __init__(self, stand: Stand, arms: dict[str, Arm], tell: Tell) -> None:
        self._stand = stand
        self._arms = arms
        self._tell = tell

    def warm_up(self) -> None:
        """Everything that is asked for later is executed and stored."""
        for name, arm in self._arms.items():
            self._tell(f"{name}, warming up", 0, 0)
            bodies = [(prompts.greedy(SMALL_TOKENS), NAMES)]
            if name == "dynbranch":
                bodies.append((prompts.greedy(LARGE_TOKENS), LARGE_NAMES))
            for body, names in bodies:
                once = self._stand.closed(arm, body, _WARM_LIMIT_S, 4, cycle=names, most=names)
                for _ in range(3):
                    self._stand.run(arm, once)
        for arm in self._arms.values():
            self._hits(arm, _WARM_S, CROWD)
        for streamed in (False, True):
            self._large(_WARM_S, streamed=streamed)

    def round(self, number: int, rounds: int) -> Round:
        alone: Round = {}
        for name in turns(list(self._arms), number):
            self._tell(f"{name}, one client", number, rounds)
            alone[name] = summary(self._hits(self._arms[name], ALONE_S, 1))
        crowd: Round = {}
        for name in turns(list(self._arms), number):
            self._tell(f"{name}, {CROWD} clients", number, rounds)
            crowd[name] = summary(self._hits(self._arms[name], CROWD_S, CROWD))
        large: Round = {}
        for kind in turns(["plain", "stream"], number):
            self._tell(f"16 KiB, {kind}", number, rounds)
            large[kind] = summary(self._large(STREAM_S, streamed=kind == "stream"))
        self._tell("hits during a cascade", number, rounds)
        return {"alone": alone, "crowd": crowd, "large": large, "cascade": self.cascade(number)}

    def cascade(self, number: int) -> Round:
        """Hits on other names, from just before a write until all that it felled is deleted."""
        arm = self._arms["dynbranch"]
        job = self._stand.closed(arm, prompts.greedy(SMALL_TOKENS), _CASCADE_S, CASCADE_CROWD, cycle=NAMES)
        running = self._stand.begin(job)
        time.sleep(_BEFORE_WRITE_S)
        begin = time.monotonic()
        invalidated = _write(arm.url, _record(number))
        acknowledged = time.monotonic()
        # A second write waits until the first one's rows are deleted.
        _write(arm.url, "other/1")
        end = time.monotonic()
        seen = running.seen()
        during: list[float] = []
        outside: list[float] = []
        for started, ms in zip(seen.begin_s, seen.whole_ms, strict=True):
            touches = started < end and started + ms / 1000 > begin
            (during if touches else outside).append(ms)
        return {
            "requests": seen.requests,
            "invalidated": invalidated,
            "write_s": acknowledged - begin,
            "cleaned_s": end - begin,
            "hits_during": len(during),
            "p50_ms": percentile(during, 0.5),
            "p99_ms": percentile(during, 0.99),
            "max_ms": percentile(during, 1.0),
            "p99_outside_ms": percentile(outside, 0.99),
            "outcomes": seen.outcomes,
        }

    def _hits(self, arm: Arm, seconds: float, concurrency: int) -> Measurement:
        job = self._stand.closed(arm, prompts.greedy(SMALL_TOKENS), seconds, concurrency, cycle=NAMES)
        return self._stand.run(arm, job)

    def _large(self, seconds: float, *, streamed: bool) -> Measurement:
        body = prompts.greedy(LARGE_TOKENS)
        arm = self._arms["dynbranch"]
        job = self._stand.closed(
            arm, prompts.streamed(body) if streamed else body, seconds, 1, cycle=LARGE_NAMES
        )
        return self._stand.run(arm, job)


def _write(url: str, record: str) -> int:
    """Report one write. Returns how many entries it invalidated."""
    request = urllib.request.Request(
        f"{url}/dynbranch/v1/writes",
        json.dumps({"records": [record]}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_WRITE_TIMEOUT_S) as answer:
        return int(json.load(answer)["invalidated"])


def summary(found: Measurement) -> dict[str, Any]:
    seen = found.seen
    return {
        "requests": seen.requests,
        "per_s": found.per_s,
        "p50_ms": statistics.median(seen.whole_ms),
        "p99_ms": percentile(seen.whole_ms, 0.99),
        "first_byte_p50_ms": statistics.median(seen.first_byte_ms),
        "cpu_us_per_request": found.cpu_us_per_request,
        "cpu_us_per_request_of": found.cpu_us_each(seen.requests),
        "bytes_per_answer": seen.body_bytes // seen.requests,
        "outcomes": seen.outcomes,
    }


def figures(rounds: list[Round]) -> dict[str, Figure]:
    def of(part: str, name: str, key: str) -> list[float]:
        return [one[part][name][key] for one in rounds]

    def over(part: str, key: str) -> Figure:
        pairs = list(zip(of(part, "dynbranch", key), of(part, "litellm", key), strict=True))
        return ratio(pairs, statistics.median)

    found = {
        "p50_ms_c1": median(of("alone", "dynbranch", "p50_ms")),
        "p99_ms_c1": median(of("alone", "dynbranch", "p99_ms")),
        "requests_per_s_c32": median(of("crowd", "dynbranch", "per_s")),
        "stream_first_byte_over_plain": ratio(
            list(
                zip(
                    of("large", "stream", "first_byte_p50_ms"),
                    of("large", "plain", "first_byte_p50_ms"),
                    strict=True,
                )
            ),
            statistics.median,
        ),
        "p99_ms_during_1e4_cascade": median([one["cascade"]["p99_ms"] for one in rounds]),
    }
    if "litellm" in rounds[0]["alone"]:
        found |= {
            "p50_over_litellm_cache_hit": over("alone", "p50_ms"),
            "requests_per_s_over_litellm_cache_hit": over("crowd", "per_s"),
        }
    return found


def failures(rounds: list[Round]) -> tuple[str, ...]:
    """What would make the figures speak of something else than hits and cascades."""
    wrong: list[str] = []
    for number, one in enumerate(rounds):
        parts = {kind: one[kind] for kind in ("alone", "crowd", "large")}
        flat = {f"{kind}, {name}": seen for kind, part in parts.items() for name, seen in part.items()}
        for what, seen in {**flat, "cascade": one["cascade"]}.items():
            if seen["outcomes"].get("hit", 0) < _FEWEST_HITS * seen["requests"]:
                outcomes = f"{seen['outcomes']} of {seen['requests']}"
                wrong.append(f"round {number}, {what}: too many answers were no hits: {outcomes}")
        if one["cascade"]["invalidated"] != DEPENDANTS:
            wrong.append(f"round {number}: the write felled {one['cascade']['invalidated']} entries")
        if one["cascade"]["hits_during"] < _FEWEST_DURING:
            wrong.append(f"round {number}: only {one['cascade']['hits_during']} hits during the cascade")
    return tuple(wrong)
