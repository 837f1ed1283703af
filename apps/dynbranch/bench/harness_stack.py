"""What coding agents are pointed at: an engine that plays a script and speaks every protocol itself, and the
whole stack before it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dynbranch.bench.harness_programs import GREEDY, MODEL
from dynbranch.bench.harness_tasks import script
from dynbranch.bench.result import BenchFailed

_DYNBRANCH: Final = (sys.executable, "-m", "dynbranch.cli.main")
_START_S: Final = 120
_PATIENCE_S: Final = 60


@dataclass(frozen=True, slots=True)
class HarnessStack:
    """``engine`` plays the script, ``gateway`` stands before it. ``record``: what the gateway recorded."""

    engine: str
    gateway: str
    record: Path

    def tell_engine(self, path: str, body: Mapping[str, object]) -> Any:
        """A page of the engine's own control."""
        request = urllib.request.Request(self.engine + path, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
            return json.load(response)

    def answered(self, protocol: str, outcome: str = "[a-z]+") -> int:
        """Requests of a protocol that were answered."""
        with urllib.request.urlopen(f"{self.gateway}/metrics", timeout=_PATIENCE_S) as response:
            lines = response.read().decode().splitlines()
        kind = re.compile(
            rf'dynbranch_gateway_requests_total{{failed="false",kind="{protocol}",outcome="{outcome}"}} (\S+)'
        )
        return round(sum(float(found[1]) for line in lines if (found := kind.fullmatch(line))))


@contextmanager
def harness_stack(folder: Path) -> Iterator[HarnessStack]:
    """Raises BenchFailed."""
    rules = folder / "script.jsonl"
    rules.write_text(script(), encoding="utf-8")
    engine = (*_DYNBRANCH, "stub-engine", "--port", "0", "--model", MODEL, "--script", str(rules), "--native")
    with _started(engine, folder, r'"address": "([^"]+)"') as address:
        url = f"http://{address}"
        up = (*_DYNBRANCH, "up", "--port", "0", "--state-dir", str(folder / "state"), "--engine-url", url)
        with _started(up, folder, r"DynBranch is up: (\S+)") as served:
            yield HarnessStack(engine=url, gateway=served, record=folder / "record.jsonl")


@contextmanager
def _started(command: tuple[str, ...], folder: Path, told: str) -> Iterator[str]:
    """What the process tells of itself once it is ready."""
    # Services take every DYNBRANCH_ variable for a setting.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DYNBRANCH_")}
    environment |= {
        "DYNBRANCH_GATEWAY_GREEDY_HARNESSES": ",".join(program.name for program in GREEDY),
        "DYNBRANCH_GATEWAY_RECORD": str(folder / "record.jsonl"),
        "DYNBRANCH_GATEWAY_RECORD_TYPES": "*",
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as process:
        assert process.stdout is not None
        too_late = threading.Timer(_START_S, process.kill)
        too_late.start()
        try:
            found = next((match for line in process.stdout if (match := re.search(told, line))), None)
            too_late.cancel()
            if found is None:
                raise BenchFailed(f"{' '.join(command[2:4])} ended before it was ready")
            yield found[1]
        finally:
            too_late.cancel()
            process.terminate()
            try:
                process.communicate(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
