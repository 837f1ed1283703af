from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
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


@pytest.fixture(autouse=True)
def no_bug_is_answered(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A bug becomes a logged 500, which a test could overlook."""
    yield
    bugs = [
        record for record in caplog.get_records("call") if record.getMessage().startswith("a bug answered")
    ]
    assert bool(bugs) is ("bug" in request.node.name)
