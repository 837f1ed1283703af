"""What several tests of the real service need."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

StartService = Callable[..., AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]]


@pytest.fixture
def service() -> StartService:
    """The service as a process of its own, killed at the end if it still runs: (process, address)."""
    return _service


@asynccontextmanager
async def _service(data: Path, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("DYNBRANCH_", "OTEL_"))}
    environ.update(DYNBRANCH_CSL_LISTEN="127.0.0.1:0", DYNBRANCH_CSL_DATA_DIR=str(data), **settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynbranch.csl", stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        yield process, json.loads(line)["address"] if line else ""
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
