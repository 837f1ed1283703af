"""The store at scale: demands among 10³ and 10⁶ entries, memory with 10⁶, cascades of 10² and 10⁴ dependants.

Entries are of 1 KiB that does not compress, each with one derivation that read one of 10⁴ records. They are
put by the same functions as a commit's, in large batches, and the check of the whole store must find nothing
wrong with them. Demands go over gRPC to the real service, as a gateway's do; a cascade is timed from the
call of ``Shell.write`` on a real directory to its durable acknowledgement.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench.result import Measured, Tell
from dynbranch.clients.csl import GrpcCsl
from dynbranch.csl.core import consistency, graph, rows
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Node
from dynbranch.csl.core.store import Transaction
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.key_value import KeyValue
from dynbranch.csl.opening import open_directory
from dynbranch.csl.rocks import DataDirectory, RocksKeyValue, Sizes
from dynbranch.csl.service import opened_shell
from dynbranch.demo.measures import Figure, median, ratio
from dynbranch.domain.ids import DemandId, GenerationId, Name, RecordId, UnixMs
from dynbranch.domain.reuse import (
    PURE,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Incarnation,
    Level,
    Read,
)
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock

SMALL, LARGE = 1_000, 1_000_000
FEW, MANY = 100, 10_000
DEMANDS, ROUNDS = 1_500, 7
CASCADES = 15
_BATCH = 4_000
_RECORDS = 10_000
_FLAT = "docs/r"
"""Records of entries that nothing rests on."""
_PAYLOAD_BYTES = 1024
_TIMEOUT_S = 10.0


def measure(tell: Tell) -> Measured:
    raw: dict[str, Any] = {}
    with TemporaryDirectory(prefix="dynbranch-scale-") as folder:
        small, large = Path(folder, "small"), Path(folder, "large")
        for path, count in ((small, SMALL), (large, LARGE)):
            load(path, _flat(count), partial(_tell_put, tell, count))
        tell("every row is checked", 0, 0)
        raw["check"] = {"entries": LARGE, "violations": _check(large)}
        demands = asyncio.run(_demands(small, large, tell))
    raw.update(demands)
    cascades = [asyncio.run(_pair(number, tell)) for number in range(CASCADES)]
    raw["cascades"] = cascades
    figures: dict[str, Figure] = {
        "demand_p50_1e6_over_1e3": ratio(
            [(one["large_p50_ms"], one["small_p50_ms"]) for one in demands["rounds"]], statistics.median
        ),
        "rss_mb_1e6": median([one["large_peak_rss_mb"] for one in demands["rounds"]]),
        "cascade_1e4_s": median([one["many_s"] for one in cascades]),
        "cascade_per_node_1e4_over_1e2": ratio(
            [(one["many_s"] / MANY, one["few_s"] / FEW) for one in cascades], statistics.median
        ),
        "cascade_1e4_longest_block_ms": median([one["many_longest_block_ms"] for one in cascades]),
    }
    failures = tuple(raw["check"]["violations"])
    if demands["misses"]:
        failures += (f"{demands['misses']} demands for stored entries missed",)
    return Measured(figures, raw, failures)


# Loading


def _tell_put(tell: Tell, count: int, done: int) -> None:
    tell("entries are put", done, count)


Put = tuple[Name, tuple[str, ...], tuple[Name, ...], bytes]
"""An entry to be put: name, records read, producers that came before, payload."""


def load(path: Path, entries: Iterator[Put], tell: Callable[[int], None]) -> None:
    """Put entries with their derivations, index rows and counters."""
    opened = open_directory(DataDirectory(path), sizes=Sizes(), now=UnixMs(1_700_000_000_000))
    numbers: dict[Name, int] = {}
    done = 0
    while batch := list(islice(entries, _BATCH)):
        _put(opened.store, batch, numbers)
        done += len(batch)
        tell(done)
    opened.keep()
    opened.store.close()


def _put(store: KeyValue, batch: list[Put], numbers: dict[Name, int]) -> None:
    transaction = Transaction(store)
    found = transaction.get_guarded(rows.META)
    assert found is not None
    meta = rows.unpack_meta(found)
    for name, records, producers, payload in batch:
        number = meta.next_number
        meta = replace(meta, next_number=number + 1)
        entry = EntryRow(
            number=number,
            level=Level.SOURCED if records else Level.GREEDY,
            payload_bytes=len(payload),
            execution_ms=100.0,
            created=UnixMs(time.time_ns() // 1_000_000),
            next_derivation=1,
            derivations=(0,),
            payload_digest=digest("result"),
            label="bench",
            output_digests=(digest("result"),),
        )
        meta = graph.put_entry(transaction, meta, name, entry, payload)
        reads = tuple(Read(RecordId(record), meta.version) for record in sorted(records))
        needed = tuple(sorted(Incarnation(producer, numbers[producer]) for producer in producers))
        graph.put_derivation(transaction, Node(name, 0), DerivationRow(meta.version, reads, needed))
        if not records or not records[0].startswith(_FLAT):
            numbers[name] = number
    transaction.put(rows.META, rows.pack_meta(meta))
    store.apply(transaction.batch())


def _flat(count: int) -> Iterator[Put]:
    chance = random.Random(count)
    for number in range(count):
        yield name_of(f"n{number}"), (f"{_FLAT}{number % _RECORDS}",), (), chance.randbytes(_PAYLOAD_BYTES)


def tree(count: int, record: str = "docs/1") -> Iterator[Put]:
    """A tenth read the record, the others rest on one of these or on another that does."""
    direct = max(1, count // 10)
    chance = random.Random(count)
    for number in range(count):
        name = name_of(f"{record}:{number}")
        if number < direct:
            yield name, (record,), (), chance.randbytes(_PAYLOAD_BYTES)
        else:
            yield name, (), (name_of(f"{record}:{number - direct}"),), chance.randbytes(_PAYLOAD_BYTES)


def _check(path: Path) -> list[str]:
    store = RocksKeyValue(path / "rocks", sizes=Sizes())
    try:
        return list(islice(consistency.violations(store), 5))
    finally:
        store.close()


# Demands


async def _demands(small: Path, large: Path, tell: Tell) -> dict[str, Any]:
    """Rounds of demands for random stored entries, one store after the other in turn."""
    rounds: list[dict[str, float]] = []
    misses = 0
    async with _service(small) as (few, _), _service(large) as (many, pid):
        for number in range(ROUNDS):
            tell("demands", number, ROUNDS)
            chance = random.Random(number)
            small_ms, missed_small = await _timed(few, SMALL, chance)
            large_ms, missed_large = await _timed(many, LARGE, chance)
            misses += missed_small + missed_large
            rounds.append(
                {
                    "small_p50_ms": statistics.median(small_ms),
                    "large_p50_ms": statistics.median(large_ms),
                    "small_p99_ms": sorted(small_ms)[len(small_ms) * 99 // 100],
                    "large_p99_ms": sorted(large_ms)[len(large_ms) * 99 // 100],
                    "large_rss_mb": _memory_mb(pid, "VmRSS"),
                    "large_peak_rss_mb": _memory_mb(pid, "VmHWM"),
                }
            )
    return {"rounds": rounds, "demands_per_round": DEMANDS, "misses": misses}


async def _timed(csl: GrpcCsl, count: int, chance: random.Random) -> tuple[list[float], int]:
    seen, misses = [], 0
    for _ in range(DEMANDS):
        demand = Demand(
            demand_id=DemandId(new_id()),
            name=name_of(f"n{chance.randrange(count)}"),
            identity=Identity(),
            scope=PURE,
            intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
            may_execute=False,
        )
        begin = time.perf_counter()
        outcome = await csl.demand(demand, timeout_s=_TIMEOUT_S)
        seen.append((time.perf_counter() - begin) * 1000)
        misses += not isinstance(outcome, Hit)
    return seen, misses


@asynccontextmanager
async def _service(path: Path) -> AsyncIterator[tuple[GrpcCsl, int]]:
    """The real service on a directory, and its process id."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("DYNBRANCH_", "OTEL_"))}
    environ.update(
        DYNBRANCH_CSL_LISTEN="127.0.0.1:0",
        DYNBRANCH_CSL_DATA_DIR=str(path),
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynbranch.csl", stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        csl = GrpcCsl(json.loads(line)["address"])
        yield csl, process.pid
        await csl.close()
    finally:
        process.terminate()
        await process.wait()


def _memory_mb(pid: int, what: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError(f"no {what} of {pid}")


# Cascades


async def _pair(number: int, tell: Tell) -> dict[str, float]:
    tell("cascades", number, CASCADES)
    found: dict[str, float] = {}
    for what, count in (("few", FEW), ("many", MANY)):
        with TemporaryDirectory(prefix="dynbranch-cascade-") as folder:
            load(Path(folder), tree(count), lambda done: None)
            found |= {f"{what}_{key}": value for key, value in (await _cascade(Path(folder), count)).items()}
    return found


async def _cascade(path: Path, count: int) -> dict[str, float]:
    async with opened_shell(
        DataDirectory(path), limits=Limits(), sizes=Sizes(), clock=SystemClock(), new_id=new_id
    ) as (shell, _):
        blocks: list[float] = []
        watching = asyncio.ensure_future(_watch(blocks))
        await asyncio.sleep(0.05)
        blocks.clear()
        begin = time.perf_counter()
        result = await shell.write([RecordId("docs/1")], reporter="bench")
        took_s = time.perf_counter() - begin
        assert result.invalidated_entries == count, result.invalidated_entries
        # A second write waits until the first one's rows are deleted.
        await shell.write([RecordId("other/1")], reporter="bench")
        cleaned_s = time.perf_counter() - begin
        watching.cancel()
    return {"s": took_s, "cleaned_s": cleaned_s, "longest_block_ms": max(blocks, default=0.0) * 1000}


async def _watch(blocks: list[float]) -> None:
    """How long the event loop was away from a task that wants it all the time."""
    before = time.perf_counter()
    while True:
        await asyncio.sleep(0)
        now = time.perf_counter()
        blocks.append(now - before)
        before = now
