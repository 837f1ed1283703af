"""One CSL on one data directory, wired: opening, recovery, serving, and a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Inconsistent
from dynbranch.csl.key_value import KeyValue, StoreCorrupt
from dynbranch.csl.opening import OpenDatabase, Opened, open_directory
from dynbranch.csl.rocks import DataDirectory, RocksKeyValue, Sizes
from dynbranch.csl.shell import Shell
from dynbranch.domain.errors import StoreFailed
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks


@asynccontextmanager
async def opened_shell(
    directory: DataDirectory,
    *,
    limits: Limits,
    sizes: Sizes,
    clock: Clock,
    new_id: Callable[[], bytes],
    layer: Callable[[KeyValue], KeyValue] | None = None,
    open_database: OpenDatabase = RocksKeyValue,
) -> AsyncIterator[tuple[Shell, Tasks]]:
    """A shell that is ready to serve, and the tasks beside it: when one of them crashes, stop.

    On leaving, everything applied is durable and the directory is free. Raises StoreLocked, StoreFull,
    UnknownFormat. Damage that is found while serving is left as a mark in the directory, so that the next
    opening sets it aside. ``layer`` puts something between the shell and the store, to watch or to fail.
    """
    opened = open_directory(directory, sizes=sizes, now=clock.unix_ms(), open_database=open_database)
    flusher = ThreadPoolExecutor(1, thread_name_prefix="csl-flush")
    loop = asyncio.get_running_loop()

    async def run_blocking(call: Callable[[], None]) -> None:
        await loop.run_in_executor(flusher, call)

    try:
        store = opened.store if layer is None else layer(opened.store)
        library = Library(limits=limits, new_id=new_id, view=store)
        shell = Shell(store, library, clock, run_blocking=run_blocking, keep=opened.keep)
        opened = await _recover(shell, opened)
        try:
            async with Tasks() as tasks:
                shell.start(tasks)
                yield shell, tasks
        finally:
            await _settle(shell, opened)
    finally:
        flusher.shutdown(wait=True)
        opened.store.close()


async def _recover(shell: Shell, opened: Opened) -> Opened:
    await shell.recover()
    if opened.new_epoch is None:
        return opened
    await shell.begin_epoch(opened.new_epoch)
    await shell.recover()
    opened.epoch = opened.new_epoch
    opened.keep()
    return opened


async def _settle(shell: Shell, opened: Opened) -> None:
    failure = shell.failure
    if isinstance(failure, StoreCorrupt | Inconsistent):
        opened.directory.mark_damaged(str(failure))
    if failure is not None:
        return
    try:
        await shell.flush()
        opened.keep()
    except StoreFailed:
        # The shell has said it; the floor stays where it was.
        return
