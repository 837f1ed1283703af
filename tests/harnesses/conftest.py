"""Real coding agents, which ``make test-harnesses`` installs; without them there is nothing to collect."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from dynbranch.bench.harness_programs import PROGRAMS, installed
from dynbranch.bench.harness_stack import HarnessStack, harness_stack
from dynbranch.bench.harnesses import Did, all_did

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
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HarnessStack]:
    with harness_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture(scope="session")
def seen(
    home: Path, stack: HarnessStack, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[tuple[str, str], Did]:
    """What came of each task of each program that is here. All are done before the first test."""
    programs = [program for program in PROGRAMS if not program.missing(home)]
    folder = tmp_path_factory.mktemp("programs")
    done = all_did(stack, programs, home, folder, lambda doing, number, count: None)
    return {(one.program, one.task): one for one in done}
