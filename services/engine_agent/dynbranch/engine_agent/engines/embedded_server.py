"""The embedded engine's own process: llama.cpp's server over a GGUF file.

Run as ``python -m dynbranch.engine_agent.engines.embedded_server``. Prints one JSON line with its address,
then serves until its standard input closes or its parent dies. It is a process of its own because a crash in
native code must not take the agent along.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LOG_ERRORS = 1


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel end this process when its parent is gone, however that happened (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def serve(arguments: argparse.Namespace) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model_path
    params.model_alias = {arguments.model_id}
    params.port = 0
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.slots * arguments.context_tokens
    params.cpuparams.n_threads = arguments.threads
    # Threads that wait by spinning slow decoding down twentyfold as soon as anything else wants the CPU.
    params.cpuparams.poll = 0
    params.cpuparams_batch.poll = 0
    params.cont_batching = True
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.ui = False
    params.verbosity = _LOG_ERRORS
    # A prompt cache changes how a prompt is batched, and with it sometimes the output.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"address": server.listening_address}), flush=True)
    sys.stdin.buffer.read()
    # The native destructor waits for running requests; the parent wants this process gone.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--model-id", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, required=True, help="per slot")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent_pid)
    serve(arguments)


if __name__ == "__main__":
    main()
