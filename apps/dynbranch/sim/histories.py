"""What clients of a real store saw, and whether any order of single steps explains it.

Names and records are independent objects, coupled only by writes, so a history of a hundred thousand calls is
checked object by object: each record has the total order of its versions, each name the lives of its entry.
Every check uses what is certain only: a call that came back before another began came before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from dynbranch.domain.ids import GenerationId, LeaseId, Name, RecordId, Version, is_whole, source_of, whole
from dynbranch.domain.reuse import (
    CommitOutcome,
    Committed,
    DemandOutcome,
    Hit,
    Incarnation,
    Lease,
    Live,
    Miss,
    Refused,
)
from dynbranch.domain.reuse import Refusal as Why

T = TypeVar("T", Version, float)

CLOCK_MARGIN_S = 0.005
"""Leases are timed by the store; how far its timers may be from what clients see."""


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds on the machine's monotonic clock, which all processes share."""

    invoked: float
    returned: float


@dataclass(frozen=True, slots=True)
class Demanded:
    span: Span
    name: Name
    payload: bytes
    """What the name stands for."""
    may_hit: bool
    excluded: frozenset[GenerationId]
    outcome: DemandOutcome


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """``outcome`` None: it is not known."""

    span: Span
    lease: Lease
    reads: tuple[RecordId, ...]
    outcome: CommitOutcome | None


@dataclass(frozen=True, slots=True)
class WriteEnded:
    span: Span
    records: tuple[RecordId, ...]
    version: Version


@dataclass(frozen=True, slots=True)
class Renewed:
    span: Span
    lease_id: LeaseId
    ttl_s: float
    known: bool


@dataclass(frozen=True, slots=True)
class Released:
    span: Span
    lease_id: LeaseId


Call = Demanded | CommitEnded | WriteEnded | Renewed | Released


def violations(history: Iterable[Call]) -> list[str]:
    """What no order of single steps explains; empty if one does, as far as these checks see."""
    seen = _Seen(history)
    return [
        *_versions(seen.writes.all),
        *(what for demand in seen.demands for what in seen.of_demand(demand)),
        *(what for commit in seen.commits for what in seen.of_commit(commit)),
    ]


def _versions(writes: Sequence[WriteEnded]) -> Iterator[str]:
    """Versions are distinct, and grow in the order of time."""
    if len({write.version for write in writes}) != len(writes):
        yield "two writes have one version"
    newest: Version | None = None
    returned = sorted(writes, key=lambda write: write.span.returned)
    position = 0
    for write in sorted(writes, key=lambda write: write.span.invoked):
        while position < len(returned) and returned[position].span.returned < write.span.invoked:
            version = returned[position].version
            newest = version if newest is None else max(newest, version)
            position += 1
        if newest is not None and write.version <= newest:
            yield f"a write got {write.version} after {newest} was acknowledged"


class _Writes:
    """When what was read at a version may have been overwritten, and when it surely was."""

    def __init__(self, writes: Sequence[WriteEnded]) -> None:
        self.all = writes
        self._by_source: defaultdict[str, list[tuple[WriteEnded, RecordId]]] = defaultdict(list)
        for write in writes:
            for record in write.records:
                self._by_source[source_of(record)].append((write, record))
        self._tables: dict[RecordId, tuple[list[Version], list[float], list[float]]] = {}
        ordered = sorted(writes, key=lambda write: write.span.returned)
        self._returned = [write.span.returned for write in ordered]
        self._newest_returned = _running_max([write.version for write in ordered])
        ordered = sorted(writes, key=lambda write: write.span.invoked)
        self._invoked = [write.span.invoked for write in ordered]
        self._oldest_invoked = _running_min([write.version for write in reversed(ordered)])[::-1]

    def overwritten(self, record: RecordId, as_of: Version) -> tuple[float, float]:
        """(may have been from, surely was from): when a covering write with a newer version began, ended."""
        versions, invoked, returned = self._table(record)
        at = bisect_right(versions, as_of)
        return (invoked[at], returned[at]) if at < len(versions) else (inf, inf)

    def _table(self, record: RecordId) -> tuple[list[Version], list[float], list[float]]:
        table = self._tables.get(record)
        if table is None:
            covering = {
                write.version: write.span
                for write, written in self._by_source[source_of(record)]
                if written == record or is_whole(written) or is_whole(record)
            }
            versions = sorted(covering)
            spans = [covering[version] for version in versions]
            invoked = _running_min([span.invoked for span in reversed(spans)])[::-1]
            returned = _running_min([span.returned for span in reversed(spans)])[::-1]
            table = self._tables[record] = (versions, invoked, returned)
        return table

    def wrong_token(self, span: Span, token: Version) -> bool:
        """A token is at least every version acknowledged before, and below every one begun after."""
        before = bisect_left(self._returned, span.invoked)
        if before and token < self._newest_returned[before - 1]:
            return True
        after = bisect_right(self._invoked, span.returned)
        return after < len(self._oldest_invoked) and token >= self._oldest_invoked[after]


def _running_max(values: Sequence[Version]) -> list[Version]:
    running: list[Version] = []
    for value in values:
        running.append(max(value, running[-1]) if running else value)
    return running


def _running_min(values: Sequence[T]) -> list[T]:
    running: list[T] = []
    for value in values:
        running.append(min(value, running[-1]) if running else value)
    return running


@dataclass(slots=True)
class _LeaseLife:
    """``open_until``: surely open before; ``over_by``: surely not followed after."""

    grant: Demanded
    lease: Lease
    open_until: float
    over_by: float


class _Seen:
    def __init__(self, history: Iterable[Call]) -> None:
        self.demands: list[Demanded] = []
        self.commits: list[CommitEnded] = []
        writes: list[WriteEnded] = []
        self._renewals: defaultdict[LeaseId, list[Renewed]] = defaultdict(list)
        self._releases: dict[LeaseId, Span] = {}
        for call in history:
            match call:
                case Demanded():
                    self.demands.append(call)
                case CommitEnded():
                    self.commits.append(call)
                case WriteEnded():
                    writes.append(call)
                case Renewed():
                    self._renewals[call.lease_id].append(call)
                case Released():
                    self._releases[call.lease_id] = call.span
        self.writes = _Writes(writes)
        self._commit_of = {commit.lease.lease_id: commit for commit in self.commits}
        self._supports: defaultdict[Incarnation, list[CommitEnded]] = defaultdict(list)
        self._unknown: defaultdict[Name, list[CommitEnded]] = defaultdict(list)
        self._standing: defaultdict[Name, list[CommitEnded]] = defaultdict(list)
        for commit in self.commits:
            if isinstance(commit.outcome, Committed):
                self._supports[commit.outcome.incarnation].append(commit)
                self._standing[commit.lease.name].append(commit)
            elif commit.outcome is None:
                self._unknown[commit.lease.name].append(commit)
        self._falls: dict[Incarnation, tuple[float, float]] = {}
        self._leases: dict[GenerationId, _LeaseLife] = {}
        self._by_name: defaultdict[Name, list[_LeaseLife]] = defaultdict(list)
        for demand in self.demands:
            match demand.outcome:
                case Miss(lease=Lease() as lease):
                    life = self._life(demand, lease)
                    self._leases[lease.generation.generation_id] = life
                    self._by_name[demand.name].append(life)

    # When things fall

    def falls(self, incarnation: Incarnation) -> tuple[float, float]:
        """(may have fallen from, surely fell by)."""
        known = self._falls.get(incarnation)
        if known is None:
            supports = [self._overtaken(one) for one in self._supports[incarnation]]
            supports += [self._overtaken(one) for one in self._unknown[incarnation.name]]
            known = (
                min((may for may, _ in supports), default=0.0),
                max((sure for _, sure in supports), default=inf),
            )
            self._falls[incarnation] = known
        return known

    def _overtaken(self, commit: CommitEnded) -> tuple[float, float]:
        token = commit.lease.read_token
        ends = [self.writes.overwritten(record, token) for record in commit.reads]
        ends += [self.falls(producer) for producer in commit.lease.producers]
        return min((may for may, _ in ends), default=inf), min((sure for _, sure in ends), default=inf)

    def _life(self, grant: Demanded, lease: Lease) -> _LeaseLife:
        ttl_s = lease.ttl_ms / 1000
        renewals = self._renewals[lease.lease_id]
        kept = [one.span.invoked + one.ttl_s for one in renewals if one.known]
        lapses = max([grant.span.invoked + ttl_s, *kept]) - CLOCK_MARGIN_S
        lapsed = max([grant.span.returned + ttl_s, *(one.span.returned + one.ttl_s for one in renewals)])
        ends = [(lapses, lapsed + CLOCK_MARGIN_S)]
        commit, release = self._commit_of.get(lease.lease_id), self._releases.get(lease.lease_id)
        if commit is not None:
            ends.append((commit.span.invoked, commit.span.returned))
        if release is not None:
            ends.append((release.invoked, release.returned))
        ends += [self.writes.overwritten(whole(source), lease.read_token) for source in lease.scope.sources]
        ends += [self.falls(producer) for producer in lease.producers]
        return _LeaseLife(grant, lease, min(may for may, _ in ends), min(sure for _, sure in ends))

    # What each answer says

    def of_demand(self, demand: Demanded) -> Iterator[str]:
        match demand.outcome:
            case Hit() as hit:
                yield from self._hit(demand, hit)
                return
            case Live(generation):
                yield from self._live(demand, generation.generation_id)
            case Miss(lease=Lease() as lease):
                yield from self._miss(demand, lease)
        if demand.may_hit:
            yield from self._should_hit(demand)

    def _hit(self, demand: Demanded, hit: Hit) -> Iterator[str]:
        if hit.payload != demand.payload or hit.incarnation.name != demand.name:
            yield f"a hit of {_short(demand.name)} has the payload of another name"
        supports = [*self._supports[hit.incarnation], *self._unknown[demand.name]]
        if not any(commit.span.invoked < demand.span.returned for commit in supports):
            yield f"a hit of {_short(demand.name)} that nobody had committed"
        elif self.falls(hit.incarnation)[1] < demand.span.invoked:
            yield f"a stale hit of {_short(demand.name)}: a write to what it read was acknowledged before"

    def _live(self, demand: Demanded, generation: GenerationId) -> Iterator[str]:
        life = self._leases.get(generation)
        if life is None or life.lease.name != demand.name or life.grant.span.invoked > demand.span.returned:
            yield f"{_short(demand.name)} runs nowhere, and was said to be live"
        elif generation in demand.excluded:
            yield f"a demand for {_short(demand.name)} was sent where it would not go"
        elif life.over_by < demand.span.invoked:
            yield f"{_short(demand.name)} was said to be live after its lease had ended"

    def _miss(self, demand: Demanded, lease: Lease) -> Iterator[str]:
        if self.writes.wrong_token(demand.span, lease.read_token):
            yield f"the read token {lease.read_token} does not stand where its demand does"
        if not demand.may_hit:
            return
        for life in self._by_name[demand.name]:
            if (
                life.lease.lease_id != lease.lease_id
                and life.grant.may_hit
                and life.grant.span.returned <= demand.span.invoked
                and life.open_until >= demand.span.returned
                and life.lease.generation.generation_id not in demand.excluded
                and not self._others_between(life, demand, lease)
            ):
                yield f"two open leases of {_short(demand.name)}"

    def _others_between(self, life: _LeaseLife, demand: Demanded, lease: Lease) -> bool:
        """Whether a third lease may have taken the followers over."""
        return any(
            other.lease.lease_id not in (life.lease.lease_id, lease.lease_id)
            and other.grant.span.returned > life.grant.span.invoked
            and other.grant.span.invoked < demand.span.returned
            for other in self._by_name[demand.name]
        )

    def _should_hit(self, demand: Demanded) -> Iterator[str]:
        for commit in self._standing[demand.name]:
            assert isinstance(commit.outcome, Committed)
            if commit.span.returned < demand.span.invoked:
                may, _ = self.falls(commit.outcome.incarnation)
                if may > demand.span.returned:
                    yield f"an acknowledged commit of {_short(demand.name)} was not seen by a later demand"
                    return

    def of_commit(self, commit: CommitEnded) -> Iterator[str]:
        may, surely = self._overtaken(commit)
        name = _short(commit.lease.name)
        match commit.outcome:
            case Committed() if surely < commit.span.invoked:
                yield f"a commit of {name} was stored although what it read had been overwritten"
            case Refused(Why.STALE_READ | Why.LOST_PRODUCER) if may > commit.span.returned:
                yield f"a commit of {name} was refused for no reason"
            case Refused(Why.LEASE_CLOSED) if self._closed_from(commit.lease) > commit.span.returned:
                yield f"a commit of {name} was refused: nothing can have closed its lease"
            case Refused(Why.STALE_READ | Why.LOST_PRODUCER | Why.LEASE_CLOSED):
                pass
            case Refused(reason):
                yield f"a commit of {name} was refused: {reason.value}"

    def _closed_from(self, lease: Lease) -> float:
        ends = [self.writes.overwritten(whole(source), lease.read_token)[0] for source in lease.scope.sources]
        return min([*ends, *(self.falls(producer)[0] for producer in lease.producers)], default=inf)


def _short(name: Name) -> str:
    return name.hex()[:8]
