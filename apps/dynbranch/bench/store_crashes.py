"""Kills, power cuts and restores of a real store, and what was acknowledged and is not so afterwards.

A child of its own serves from a directory in memory-sized tables, so that tables, manifest and log all change
under it, and tells on a pipe what it acknowledged. It is killed at a random moment. For a power cut the
directory is copied and its logs, one after the other, are cut to what the last successful flush had covered,
or anywhere between that and what they had. Then the directory is opened as at every start, and looked at:

- the last acknowledged write of a record is known, and nothing that read an older version is served;
- what was committed and acknowledged before an acknowledged write is served, unless a write after it fells it
  (after a kill: every acknowledged commit, since the log keeps its order);
- the store is not set aside, and the check of all its rows finds nothing: no batch is torn.

In a share of the kills a second child is killed as well, while it opens what the first one left. Rounds in
which hardly anything was acknowledged would show nothing: that is a failure too.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench.cpu_time import cpu_s
from dynbranch.bench.result import Tell
from dynbranch.csl import copies
from dynbranch.csl.core import consistency, versions
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.key_value import KeyValue
from dynbranch.csl.rocks import DataDirectory, Sizes
from dynbranch.csl.service import opened_shell
from dynbranch.csl.shell import Shell
from dynbranch.demo.measures import Figure, exact
from dynbranch.domain.ids import DemandId, GenerationId, RecordId, UnixMs
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Level,
    Miss,
    ReadScope,
)
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock

KILLS, CUTS, RESTORES = 200, 100, 50
SIZES = Sizes(block_cache=1 << 20, write_buffer=64 << 10)
LIMITS = Limits(slice_nodes=4, plan_nodes=2)
NAMES, RECORDS = 40, 6
DOCS = ReadScope(sources=("docs",))
_LONGEST_LIFE_S = 0.25
_LONGEST_WAIT_S = 5.0
_LONGEST_OPENING_S = 0.08
_KILLED_AGAIN = 0.25
LEAST_WRITES = 5
"""Acknowledged in a life, on average."""

PURE_RESULT = "pure"


def run_crashes(
    tell: Tell, seed: int, kills: int = KILLS, cuts: int = CUTS, restores: int = RESTORES
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figures ``kill9_acked_lost``, ``power_loss_acked_lost`` and ``restore_stale_hits``."""
    chance = random.Random(seed)
    killed = Findings()
    with _children() as children:
        for number in range(kills):
            tell("kill -9 at a random moment", number, kills)
            with TemporaryDirectory(prefix="dynbranch-kill-") as folder:
                _one_life(children, Path(folder), chance, killed, cut=False)
        lost_power = Findings()
        for number in range(cuts):
            tell("power cut at a random moment", number, cuts)
            with TemporaryDirectory(prefix="dynbranch-cut-") as folder:
                _one_life(children, Path(folder), chance, lost_power, cut=True)
    restored = Findings()
    for number in range(restores):
        tell("restore after writes", number, restores)
        with TemporaryDirectory(prefix="dynbranch-restore-") as folder:
            asyncio.run(_one_restore(Path(folder), chance, restored, whole=number % 2 == 1))
    figures = {
        "kill9_acked_lost": exact(len(killed.lost), kills),
        "power_loss_acked_lost": exact(len(lost_power.lost), cuts),
        "restore_stale_hits": exact(len(restored.lost), restored.looked_at),
    }
    raw = {
        "seed": seed,
        "kill9": killed.as_json(),
        "power_loss": lost_power.as_json(),
        "restore": {**restored.as_json(), "restores": restores},
        "too_little": [
            *killed.too_little("kill -9", kills),
            *lost_power.too_little("power cut", cuts),
            *restored.unserved,
        ],
    }
    return figures, raw


@dataclass(slots=True)
class Findings:
    """``lost`` says what was acknowledged and is not so, ``unserved`` what a restore took although it must
    not.
    """

    lost: list[str] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    looked_at: int = 0
    acknowledged_writes: int = 0
    acknowledged_commits: int = 0
    torn_tails: int = 0
    cut_bytes: int = 0
    killed_again: int = 0

    def too_little(self, what: str, rounds: int) -> list[str]:
        """Why the rounds show nothing, if they do not."""
        found = []
        if self.acknowledged_writes < LEAST_WRITES * rounds:
            found.append(f"{what}: {self.acknowledged_writes} writes were acknowledged in {rounds} rounds")
        if rounds and not self.acknowledged_commits:
            found.append(f"{what}: no acknowledged commit had to be served")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "lost": self.lost[:20],
            "looked_at": self.looked_at,
            "acknowledged_writes": self.acknowledged_writes,
            "acknowledged_commits": self.acknowledged_commits,
            "torn_tails": self.torn_tails,
            "cut_bytes": self.cut_bytes,
            "killed_again": self.killed_again,
        }


# What the child does and tells


class SpyingStore:
    """Watches what every flush has surely covered: the sizes that the logs had before it began."""

    def __init__(self, store: KeyValue, database: Path, descriptor: int | None) -> None:
        self._store = store
        self._database = database
        self._descriptor = descriptor
        self.get, self.scan, self.page = store.get, store.scan, store.page
        self.apply, self.frozen, self.reclaim = store.apply, store.frozen, store.reclaim
        self.close = store.close

    def sync(self) -> None:
        sizes = _log_sizes(self._database)
        self._store.sync()
        if self._descriptor is not None:
            _say(self._descriptor, {"flushed": sizes})


def _log_sizes(database: Path) -> dict[str, int]:
    sizes = {}
    for path in database.glob("*.log"):
        with suppress(FileNotFoundError):
            # It may go meanwhile: its table is written.
            sizes[path.name] = path.stat().st_size
    return sizes


def _say(descriptor: int, what: dict[str, Any]) -> None:
    """One unbuffered line, short enough to be whole whenever the process ends."""
    os.write(descriptor, json.dumps(what).encode() + b"\n")


def live(path: str, told: str, seed: int, ready: Connection) -> None:
    """The child: serve until killed."""
    descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.run(_live(Path(path), descriptor, random.Random(seed), ready))


async def _live(path: Path, descriptor: int, chance: random.Random, ready: Connection) -> None:
    async with _serving(path, descriptor) as (shell, _):
        _say(descriptor, {"epoch": (await shell.stats()).version.epoch})
        ready.send(os.getpid())
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(_load(shell, descriptor, random.Random(chance.random())))


async def _load(shell: Shell, descriptor: int, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(0)
        if chance.random() < 0.08:
            record = RecordId("docs/*" if chance.random() < 0.1 else f"docs/{chance.randrange(RECORDS)}")
            call = new_id().hex()
            _say(descriptor, {"writing": record, "call": call})
            version = (await shell.write([record], reporter="load")).version
            _say(descriptor, {"wrote": record, "call": call, "sequence": version.sequence})
        else:
            await _execute(shell, descriptor, chance)


async def _execute(shell: Shell, descriptor: int, chance: random.Random) -> None:
    what = f"n{chance.randrange(NAMES)}"
    outcome = await shell.demand(_demand(what))
    if not isinstance(outcome, Miss) or outcome.lease is None:
        return
    if chance.random() < 0.3:
        await asyncio.sleep(0)
    reads = tuple(RecordId(f"docs/{chance.randrange(RECORDS)}") for _ in range(chance.randrange(1, 3)))
    payload = what.encode() * chance.randrange(1, 400)
    commit = Commit(outcome.lease, payload, digest(what), Level.SOURCED, 1.0, reads=reads)
    done = await shell.commit(commit)
    if isinstance(done, Committed):
        number = done.incarnation.number
        _say(descriptor, {"stored": what, "number": number, "reads": sorted(set(reads))})


def _demand(what: str, *, may_execute: bool = True, scope: ReadScope = DOCS) -> Demand:
    return Demand(
        demand_id=DemandId(new_id()),
        name=name_of(what),
        identity=Identity(),
        scope=scope,
        intended=GenerationRef(GenerationId(new_id()), "agent:1"),
        may_execute=may_execute,
    )


@asynccontextmanager
async def _serving(path: Path, descriptor: int | None = None) -> AsyncIterator[tuple[Shell, KeyValue]]:
    """A shell on a directory, small and with short slices, and the store under it."""
    layers: list[KeyValue] = []

    def watched(store: KeyValue) -> KeyValue:
        if descriptor is not None:
            # The opening has flushed all that it did.
            _say(descriptor, {"flushed": _log_sizes(path / "rocks")})
        layers.append(SpyingStore(store, path / "rocks", descriptor))
        return layers[0]

    async with opened_shell(
        DataDirectory(path),
        limits=LIMITS,
        sizes=SIZES,
        clock=SystemClock(),
        new_id=new_id,
        layer=watched,
    ) as (shell, _):
        yield shell, layers[0]


# One life and what is left of it


@contextmanager
def _children() -> Iterator[Any]:
    """Children come from a process that has everything imported and neither threads nor a store."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dynbranch.bench.store_crashes"])
    yield context


def _one_life(children: Any, folder: Path, chance: random.Random, found: Findings, *, cut: bool) -> None:
    data, told = folder / "data", folder / "told"
    with _child(children, data, told, chance) as serving:
        assert serving.poll(60), "the child did not come to serve"
        _let_live(serving.recv(), chance.random() * _LONGEST_LIFE_S)
    if not cut and chance.random() < _KILLED_AGAIN:
        with _child(children, data, told, chance) as serving:
            found.killed_again += not serving.poll(chance.random() * _LONGEST_OPENING_S)
    lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    if cut:
        data = _cut(data, folder / "after", lines, chance, found)
    asyncio.run(_look(data, lines, found, cut=cut))


def _let_live(pid: int, life_s: float) -> None:
    """So much of its own time, which a busy machine stretches."""
    begun_s, end = cpu_s([pid]), time.monotonic() + _LONGEST_WAIT_S
    while time.monotonic() < end and cpu_s([pid]) - begun_s < life_s:
        time.sleep(0.002)


@contextmanager
def _child(children: Any, data: Path, told: Path, chance: random.Random) -> Iterator[Connection]:
    """A child that is killed at the end; the connection says when it serves."""
    ours, theirs = children.Pipe()
    child = children.Process(target=live, args=(str(data), str(told), chance.randrange(1 << 30), theirs))
    child.start()
    try:
        yield ours
    finally:
        child.kill()
        child.join()
        ours.close()
        theirs.close()


def _cut(data: Path, target: Path, lines: Sequence[Line], chance: random.Random, found: Findings) -> Path:
    """The directory as a power loss may leave it: of the logs, what a flush had covered, and perhaps more."""
    shutil.copytree(data, target)
    DataDirectory(target).claim()
    covered: dict[str, int] = {}
    for line in lines:
        covered.update(line.get("flushed", {}))
    sizes = dict(sorted(_log_sizes(target / "rocks").items()))
    least = start = 0
    for name, size in sizes.items():
        least = max(least, start + min(size, covered.get(name, 0)) if name in covered else 0)
        start += size
    keep = least if chance.random() < 0.5 else chance.randint(least, start)
    found.cut_bytes += start - keep
    found.torn_tails += least < keep < start
    for name, size in sizes.items():
        os.truncate(target / "rocks" / name, min(size, keep))
        keep -= min(size, keep)
    return target


async def _look(data: Path, lines: Sequence[Line], found: Findings, *, cut: bool) -> None:
    """Compare what is served with what was acknowledged."""
    found.looked_at += 1
    writes = _writes(lines)
    async with _serving(data) as (shell, store):
        epochs = {line["epoch"] for line in lines if "epoch" in line} | {(await shell.stats()).version.epoch}
        if (data / "quarantine").exists() or len(epochs) != 1:
            found.lost.append("the store was set aside or began a new epoch")
        for write in writes:
            if write.sequence:
                found.acknowledged_writes += 1
                if versions.last_write(store, RecordId(write.record)).sequence < write.sequence:
                    found.lost.append(f"the write {write.sequence} of {write.record} is not known")
        for what, stored in _last_commits(lines).items():
            outcome = await shell.demand(_demand(what, may_execute=False))
            number = outcome.incarnation.number if isinstance(outcome, Hit) else None
            _judge(stored, number, writes, found, cut=cut)
            if isinstance(outcome, Hit) and outcome.payload.replace(what.encode(), b""):
                found.lost.append(f"{what} is served with other bytes")
        found.lost += list(consistency.violations(store))[:5]


Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """One write of the child: where in what it told the write began and was acknowledged, if it was."""

    record: str
    began: int
    ended: float
    sequence: int


def _writes(lines: Sequence[Line]) -> list[Written]:
    ends = {line["call"]: (at, line["sequence"]) for at, line in enumerate(lines) if "wrote" in line}
    return [
        Written(line["writing"], at, *ends.get(line["call"], (math.inf, 0)))
        for at, line in enumerate(lines)
        if "writing" in line
    ]


def _last_commits(lines: Sequence[Line]) -> dict[str, tuple[int, Line]]:
    return {line["stored"]: (at, line) for at, line in enumerate(lines) if "stored" in line}


def _judge(
    stored: tuple[int, Line], served: int | None, writes: Sequence[Written], found: Findings, *, cut: bool
) -> None:
    """A commit must be gone if a write of its reads began after it and was acknowledged. It must be there if
    no such write may have come after it; after a power cut only if any write did that was acknowledged.
    """
    at, line = stored
    touching = [one for one in writes if one.record == "docs/*" or one.record in line["reads"]]
    is_it = served == line["number"]
    what = f"{line['stored']} #{line['number']}"
    if is_it and any(one.began > at and one.sequence for one in touching):
        found.lost.append(f"{what} is served and stale")
    durable = not cut or any(one.began > at and one.sequence for one in writes)
    if durable and all(one.ended < at for one in touching):
        found.acknowledged_commits += 1
        if not is_it:
            found.lost.append(f"the commit {what} is not served")


# Restores


async def _one_restore(folder: Path, chance: random.Random, found: Findings, *, whole: bool) -> None:
    """Results, a copy, writes, and the copy put back: by ``restore``, or the ``whole`` directory by hand."""
    data, copy = folder / "data", folder / "copy"
    whats = [f"n{number}" for number in range(12)]
    async with _serving(data) as (shell, _):
        for what in whats:
            await _store(shell, what, f"docs/{chance.randrange(RECORDS)}")
        await _store(shell, PURE_RESULT, None)
    if whole:
        shutil.copytree(data, copy)
    else:
        copies.back_up(DataDirectory(data), copy, SIZES, UnixMs(0))
    async with _serving(data) as (shell, _):
        await shell.write([RecordId("docs/*")], reporter="bench")
    if whole:
        shutil.rmtree(data)
        shutil.copytree(copy, data)
    else:
        copies.restore(copy, DataDirectory(data), SIZES, UnixMs(time.time_ns() // 1_000_000))
    async with _serving(data) as (shell, _):
        for what in whats:
            found.looked_at += 1
            if isinstance(await shell.demand(_demand(what, may_execute=False)), Hit):
                found.lost.append(f"{what} is served and its record was written")
        # It read nothing that a write could have changed since: without it, an empty store would do as well.
        pure = await shell.demand(_demand(PURE_RESULT, may_execute=False, scope=PURE))
        if not isinstance(pure, Hit) or pure.payload != PURE_RESULT.encode():
            found.unserved.append("restore: the result that read nothing is not served")


async def _store(shell: Shell, what: str, read: str | None) -> None:
    """A result that read one record, or nothing."""
    outcome = await shell.demand(_demand(what, scope=PURE if read is None else DOCS))
    assert isinstance(outcome, Miss) and outcome.lease is not None
    level, reads = (Level.GREEDY, None) if read is None else (Level.SOURCED, (RecordId(read),))
    done = await shell.commit(Commit(outcome.lease, what.encode(), digest(what), level, 1.0, reads=reads))
    assert isinstance(done, Committed), done
