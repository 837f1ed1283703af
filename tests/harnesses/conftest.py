"""Real coding agents, which ``make test-harnesses`` installs; without them there is nothing to collect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from dynbranch.bench.harness_programs import installed
from dynbranch.bench.harness_stack import HarnessStack, harness_stack

ASKED_FOR = bool(os.environ.get("DYNBRANCH_HARNESSES_HOME"))
"""These take minutes: they are not part of every run."""

collect_ignore_glob = [] if ASKED_FOR else ["test_*.py"]


@pytest.fixture(scope="session")
def home() -> Path:
    found = installed()
    if found is None:
        pytest.skip("make test-harnesses installs the programs")
    return found


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home and a workspace for each program: most of them set a new home up, which takes long."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HarnessStack]:
    with harness_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running
