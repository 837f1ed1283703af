"""Tests against a real vLLM, which ``make test-vllm`` installs; without it there is nothing to collect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.engine_agent.vllm_server import ARGUMENTS, HOME, served

collect_ignore_glob = [] if HOME else ["test_*.py"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for every test that needs no other."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with served(log, *ARGUMENTS, "--scheduling-policy", "priority") as url:
        yield url
