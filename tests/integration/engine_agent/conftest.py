from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from contract.engine_agent.scripted_stub import llama_server
from dynbranch.stub_engine.engine import StubEngine


@pytest.fixture
async def stub() -> AsyncIterator[StubEngine]:
    async with llama_server(slots=2) as engine:
        yield engine
