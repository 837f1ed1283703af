from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from dynbranch.engine_agent.fake import Script, text_chunks
from integration.gateway.world import Plan, World, running_world
from integration.hostile.wire import all_is_well, check_store, echo

SHORT = {"head_timeout_s": 0.2, "linger_s": 0.2, "body_timeout_s": 0.5, "connection_idle_s": 30}


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    """A gateway with little patience, and an engine whose answer is a function of the bytes it was sent.
    However a test treats it, it must be well afterwards, and hold nothing wrong."""
    async with running_world(Plan(settings=SHORT)) as running:
        running.engine.writer = lambda order: Script(items=text_chunks((echo(order.body),)))
        yield running
        await all_is_well(running)
        await check_store(running)


@pytest.fixture(autouse=True)
def no_bug_is_answered(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [
        record for record in caplog.get_records("call") if record.getMessage().startswith("a bug answered")
    ]
