from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from integration.gateway.world import Plan, RawEngine, World, running_world


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with running_world(Plan()) as running:
        yield running


@pytest_asyncio.fixture
async def raw_engine() -> AsyncIterator[RawEngine]:
    engine = RawEngine()
    await engine.start()
    yield engine
    await engine.stop()
