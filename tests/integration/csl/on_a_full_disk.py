"""Run by test_full_disk.py in a file system of a few megabytes: argument 1 is a folder in it, with a file
``ballast`` that can be deleted to make room. Prints ``ok``, or fails.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dynbranch.csl.core import consistency
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.key_value import StoreFull
from dynbranch.csl.rocks import DataDirectory, RocksKeyValue, Sizes
from dynbranch.csl.service import opened_shell
from dynbranch.csl.shell import Shell
from dynbranch.domain.ids import DemandId, GenerationId, RecordId
from dynbranch.domain.reuse import (
    Commit,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Identity,
    Level,
    Miss,
    ReadScope,
)
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock

SIZES = Sizes(block_cache=1 << 20, write_buffer=256 << 10)


async def demand(shell: Shell, what: str, workflow: str = "") -> DemandOutcome:
    return await shell.demand(
        Demand(
            DemandId(new_id()),
            name_of(what),
            Identity(workflow_id=workflow),
            ReadScope(sources=("docs",)),
            GenerationRef(GenerationId(new_id()), "agent:1"),
        )
    )


async def store(shell: Shell, what: str) -> None:
    outcome = await demand(shell, what)
    assert isinstance(outcome, Miss) and outcome.lease is not None
    payload = os.urandom(64 << 10)
    reads = (RecordId("docs/1"),)
    commit = Commit(outcome.lease, payload, digest(what), Level.SOURCED, 1.0, reads=reads)
    assert isinstance(await shell.commit(commit), Committed)


async def fill(shell: Shell) -> int:
    number = 0
    while True:
        try:
            await store(shell, f"n{number}")
        except StoreFull:
            return number
        number += 1
        assert number < 10_000, "the disk is not as small as it should be"


def eat_the_rest(path: Path) -> None:
    """Others use the disk too: what is left is gone."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


async def refused(shell: Shell) -> bool:
    try:
        await shell.write([RecordId("docs/1")], reporter="test")
    except StoreFull:
        return True
    return False


async def until_there_is_room(shell: Shell) -> None:
    while True:
        if not await refused(shell):
            return
        await asyncio.sleep(0.1)


async def main(folder: Path) -> None:
    data = folder / "data"
    async with opened_shell(
        DataDirectory(data), limits=Limits(), sizes=SIZES, clock=SystemClock(), new_id=new_id
    ) as (shell, _):
        stored = await fill(shell)
        eat_the_rest(folder / "rest")
        for _ in range(2):
            # Longer than the housekeeping takes to notice.
            await asyncio.sleep(0.6)
            assert await refused(shell)
            assert isinstance(await demand(shell, "n0"), Hit)
            assert isinstance(await demand(shell, f"n{stored - 1}"), Hit)
            first = await demand(shell, "unknown", workflow="new workflow")
            assert isinstance(first, Miss), first
            assert shell.failure is None
        for name in ("ballast", "rest"):
            (folder / name).unlink()
        async with asyncio.timeout(60):
            await until_there_is_room(shell)
        assert isinstance(await demand(shell, "n0"), Miss)
        await store(shell, "again")
    reopened = RocksKeyValue(data / "rocks", sizes=SIZES)
    assert list(consistency.violations(reopened)) == []
    reopened.close()
    print("ok")


asyncio.run(main(Path(sys.argv[1])))
