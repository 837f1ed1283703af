from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from contract.engine_agent.stub_engine import StubEngine


@pytest.fixture
async def stub() -> AsyncIterator[StubEngine]:
    async with StubEngine(slots=2) as engine:
        yield engine
