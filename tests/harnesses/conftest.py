"""Real coding agents, which ``make test-harnesses`` installs; without them there is nothing to collect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from harnesses.programs import GREEDY, HOME, MODEL

collect_ignore_glob = [] if HOME else ["test_*.py"]

DYNBRANCH = (sys.executable, "-m", "dynbranch.cli.main")


@dataclass(frozen=True, slots=True)
class Stack:
    """``engine`` plays the script, ``gateway`` stands before it."""

    engine: str
    gateway: str


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    script = Path(__file__).with_name("script.jsonl")
    engine = (*DYNBRANCH, "stub-engine", "--port", "0", "--model", MODEL, "--script", str(script))
    with started(engine, folder, r'"address": "([^"]+)"') as address:
        url = f"http://{address}"
        gateway = (*DYNBRANCH, "up", "--port", "0", "--state-dir", str(folder / "state"), "--engine-url", url)
        with started(gateway, folder, r"DynBranch is up: (\S+)") as served:
            yield Stack(engine=url, gateway=served)


@contextmanager
def started(command: tuple[str, ...], folder: Path, told: str) -> Iterator[str]:
    """What the process tells of itself once it is ready."""
    # Services take every DYNBRANCH_ variable for a setting.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DYNBRANCH_")}
    environment["DYNBRANCH_GATEWAY_GREEDY_HARNESSES"] = ",".join(program.name for program in GREEDY)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as process:
        try:
            assert process.stdout is not None
            found = next((match for line in process.stdout if (match := re.search(told, line))), None)
            assert found is not None, "it ended before it was ready"
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a ``ws`` in it that holds the file of the task."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "hello.txt").write_text("moonlight\n")
    return tmp_path
