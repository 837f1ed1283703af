"""A vLLM server for tests, from the folder that ``make test-vllm`` makes.

``DYNBRANCH_VLLM_HOME`` names it; it has an environment (``venv``) and weights (``model``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynbranch.engine_agent.engines.vllm_process import KEEPER, MODULE, address

HOME = os.environ.get("DYNBRANCH_VLLM_HOME", "")

SLOTS = 4
ENVIRON = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
ARGUMENTS = ("--max-num-seqs", str(SLOTS), "--max-model-len", "2048", "--enforce-eager", "--dtype", "float32")
_START_S = 300


def command() -> tuple[str, ...]:
    return (str(Path(HOME, "venv/bin/python")), *MODULE)


def model() -> str:
    return str(Path(HOME, "model"))


@contextmanager
def served(log: Path, *arguments: str) -> Iterator[str]:
    """The base URL of a server of its own."""
    place = address(())
    line = (*command(), "--model", model(), "--served-model-name", "smollm2", *arguments, *place.arguments)
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            (sys.executable, "-I", "-S", str(KEEPER), *line),
            stdin=subprocess.PIPE,
            stdout=output,
            env={**os.environ, **ENVIRON},
        )
    try:
        _wait(place.url, keeper, log)
        yield place.url
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(timeout=30)


def _wait(url: str, keeper: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while keeper.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise AssertionError(f"vLLM did not start:\n{log.read_text(errors='replace')[-2000:]}")
