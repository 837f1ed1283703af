"""What a run of the demonstration found: pure arithmetic on the calls of its arms."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynbranch.demo.harness import Call
from dynbranch.demo.measures import Figure, exact, ratio, share
from dynbranch.demo.passages import SOURCE

REUSED = frozenset({"hit", "promoted", "adopted", "joined"})
EVERYTHING = f"{SOURCE}/*"
MIN_REQUESTS = 12
MIN_INVALIDATED = 3


@dataclass(frozen=True, slots=True)
class Arm:
    """One pass over the records."""

    name: str
    title: str
    calls: tuple[Call, ...]

    def outcomes(self) -> Counter[str]:
        return Counter(call.outcome for call in self.calls)

    def mean_ms(self) -> float:
        return statistics.fmean(call.latency_ms for call in self.calls) if self.calls else 0.0

    def p50_ms(self) -> float:
        return statistics.median(call.latency_ms for call in self.calls) if self.calls else 0.0

    def by_key(self) -> dict[str, Call]:
        return {call.key: call for call in self.calls}


@dataclass(frozen=True, slots=True)
class Written:
    """One write to a passage and what the gateway said that it removed."""

    record: str
    title: str
    version: int
    entries: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """An entry that a write removed, and why."""

    name: str
    label: str
    why: str
    direct: bool = True
    """It read what was written itself, rather than descend from a result that did."""


@dataclass(frozen=True, slots=True)
class Equality:
    equal: int
    total: int
    differing: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.total > 0 and self.equal == self.total


def equality(calls: Iterable[Call], floor: Mapping[str, Call]) -> Equality:
    """Compare each call with the floor's at the same step; a step that the floor never took differs."""
    differing: list[str] = []
    total = 0
    for call in calls:
        total += 1
        there = floor.get(call.key)
        if there is None or there.result != call.result:
            differing.append(call.key)
    return Equality(total - len(differing), total, tuple(differing))


def stale_hits(
    calls: Sequence[Call], fresh_floor: Mapping[str, Call], written: frozenset[str]
) -> tuple[Call, ...]:
    """The reused results of a pass after a write that the write should have prevented.

    Either the result is not what a fresh execution gives, or the stage reads what was written and nothing has
    executed it since.
    """
    executed: set[str] = set()
    stale: list[Call] = []
    for call in calls:
        if call.outcome not in REUSED:
            executed.add(call.request)
            continue
        there = fresh_floor.get(call.key)
        differs = there is None or there.result != call.result
        if differs or (touches(call, written) and call.request not in executed):
            stale.append(call)
    return tuple(stale)


def touches(call: Call, written: frozenset[str]) -> bool:
    """Whether the call read something that was written; a query reads the whole collection."""
    return EVERYTHING in call.reads or not written.isdisjoint(call.reads)


@dataclass(frozen=True, slots=True)
class Report:
    """``fresh_floor`` is the floor of the pass after the write: run anew where a record was touched by it."""

    floor: Arm
    control: Arm
    first: Arm
    second: Arm
    after: Arm
    fresh_floor: Arm
    writes: tuple[Written, ...]
    gone: tuple[Gone, ...]
    records: int
    traces: str = ""
    model: str = ""
    trace_id: str = ""
    seconds: float = 0.0
    engine: Mapping[str, str] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (self.floor, self.control, self.first, self.second, self.after, self.fresh_floor)

    @property
    def written(self) -> frozenset[str]:
        return frozenset(write.record for write in self.writes)

    def equality_of(self, arm: Arm) -> Equality | None:
        """Against the floor of the same state of the passages; None for a floor itself."""
        if arm is self.after:
            return equality(arm.calls, self._floor_after())
        if arm in (self.control, self.first, self.second):
            return equality(arm.calls, self.floor.by_key())
        return None

    def _floor_after(self) -> dict[str, Call]:
        """Records that read no passage were not run again: a write can not change them."""
        return {**self.floor.by_key(), **self.fresh_floor.by_key()}

    def stale(self) -> tuple[Call, ...]:
        return stale_hits(self.after.calls, self._floor_after(), self.written)

    def untouched(self) -> tuple[Call, ...]:
        """Calls after the write that read nothing written and ask what was asked before: they must hit."""
        known = {call.request for call in self.second.calls}
        return tuple(c for c in self.after.calls if c.request in known and not touches(c, self.written))

    def figures(self) -> dict[str, Figure]:
        compared = [self.equality_of(arm) for arm in (self.first, self.second, self.after)]
        equal = sum(e.equal for e in compared if e)
        total = sum(e.total for e in compared if e)
        control = equality(self.control.calls, self.floor.by_key())
        hits = sum(call.outcome == "hit" for call in self.second.calls)
        untouched = self.untouched()
        reused_after = sum(call.outcome in REUSED for call in self.after.calls)
        floor, second = self.floor.by_key(), self.second.by_key()
        pairs = [(floor[key].latency_ms, second[key].latency_ms) for key in floor if key in second]
        requests = {call.request for call in self.first.calls}
        return {
            "requests": exact(len(requests), len(self.first.calls)),
            "records": exact(self.records, self.records),
            "floor_vs_floor_equal_share": share(control.equal, control.total),
            "byte_equal_share": share(equal, total),
            "second_pass_hit_share": share(hits, len(self.second.calls)),
            "invalidated_by_write": exact(sum(w.entries for w in self.writes), max(1, len(self.writes))),
            "stale_hits_after_write": exact(len(self.stale()), reused_after),
            "untouched_hit_share": share(sum(c.outcome == "hit" for c in untouched), len(untouched)),
            "mean_floor_over_second_pass": ratio(pairs),
            "p50_floor_over_second_pass": ratio(pairs, statistics.median),
        }

    def problems(self) -> list[str]:
        """What did not hold, for a person; empty when all is well."""
        found: list[str] = []
        for arm in (self.control, self.first, self.second, self.after):
            held = self.equality_of(arm)
            if held is not None and not held.holds:
                which = ", ".join(held.differing[:3])
                found.append(
                    f"{arm.title}: {held.total - held.equal} results differ from the floor's ({which})"
                )
        figures = self.figures()
        if figures["second_pass_hit_share"].value < 1.0:
            missed = [c.key for c in self.second.calls if c.outcome != "hit"]
            found.append(f"second pass: {len(missed)} requests did not hit ({', '.join(missed[:3])})")
        if self.stale():
            found.append(f"{len(self.stale())} stale results after the write ({self.stale()[0].key})")
        if figures["untouched_hit_share"].value < 1.0:
            missed = [c.key for c in self.untouched() if c.outcome != "hit"]
            found.append(
                f"{len(missed)} results that the write did not touch were lost ({', '.join(missed[:3])})"
            )
        if figures["invalidated_by_write"].value < MIN_INVALIDATED:
            found.append("the write invalidated next to nothing: the check of freshness is empty")
        if figures["requests"].value < MIN_REQUESTS:
            found.append(f"fewer than {MIN_REQUESTS} distinct requests were made")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "figures": {key: figure.as_json() for key, figure in self.figures().items()},
            "problems": self.problems(),
            "arms": [self._arm_json(arm) for arm in self.arms],
            "writes": [
                {"record": w.record, "title": w.title, "version": w.version, "invalidated_entries": w.entries}
                for w in self.writes
            ],
            "invalidated": [
                {"name": g.name, "label": g.label, "why": g.why, "direct": g.direct} for g in self.gone
            ],
            "model": self.model,
            "traces": self.traces,
            "seconds": round(self.seconds, 1),
        }

    def _arm_json(self, arm: Arm) -> dict[str, Any]:
        held = self.equality_of(arm)
        return {
            "name": arm.name,
            "requests": len(arm.calls),
            "outcomes": dict(sorted(arm.outcomes().items())),
            "mean_ms": round(arm.mean_ms(), 3),
            "p50_ms": round(arm.p50_ms(), 3),
            "equal_to_floor": None if held is None else {"equal": held.equal, "total": held.total},
            "calls": [
                {
                    "key": call.key,
                    "outcome": call.outcome,
                    "level": call.level,
                    "latency_ms": round(call.latency_ms, 3),
                    "prompt_tokens": call.prompt_tokens,
                    "completion_tokens": call.completion_tokens,
                }
                for call in arm.calls
            ],
        }
