"""``python vllm_twin.py … --model NAME --host HOST --port PORT …``: the stub engine behind vLLM's arguments.

Starts a process of its own in its group, as vLLM's engine core is one, and writes both numbers where
``--pids`` says. ``--refuse``: ends with an error, as a command that is not installed well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path

from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.settings import Flavour, StubSettings


async def serve(told: argparse.Namespace) -> None:
    settings = StubSettings(
        Flavour.VLLM,
        FixedParameters(inter_token_ms=5.0),
        host=told.host,
        port=told.port,
        model=told.served_model_name or told.model,
    )
    print("loading", flush=True)
    async with StubEngine(settings):
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--host", "--served-model-name", "--pids"):
        parser.add_argument(name, default="")
    parser.add_argument("--port", type=int)
    parser.add_argument("--refuse", action="store_true")
    told, _ = parser.parse_known_args()
    if told.refuse:
        print("PackageNotFoundError: No package metadata was found for vllm", file=sys.stderr)
        sys.exit(3)
    core = subprocess.Popen((sys.executable, "-c", "import time; time.sleep(600)"))
    if told.pids:
        with Path(told.pids).open("a") as pids:
            pids.write(f"{os.getpid()} {core.pid}\n")
    asyncio.run(serve(told))


if __name__ == "__main__":
    main()
