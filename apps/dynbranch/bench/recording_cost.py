"""What recording costs a gateway: ``python -m dynbranch.bench.recording_cost``.

On the event loop, where requests wait for it: noting an arrival and its end. And in all, with the thread that
writes. CPU time of this process, medians of batches.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from dynbranch.domain.ids import Name
from dynbranch.domain.reuse import Identity
from dynbranch.domain.template import Output, StageKind
from dynbranch.gateway.recording import Bodies, Came, Noted, Recorder, RecordPolicy
from dynbranch.runtime.clock import SystemClock

BATCHES = 30
REQUESTS = 100
SIZES = (1_000, 8_000, 200_000)
WHO = Identity(workflow_type_id="t", workflow_id="w", agent_id="main")
SAID = Came("miss", Output("word " * 200, finish="stop"), 1000, 200, 2000.0)


async def costs_us(folder: Path, bodies: Bodies, size: int) -> tuple[float, float]:
    """A request's, on the loop and in all."""
    recorder = Recorder(RecordPolicy(folder / "t.jsonl", frozenset({"*"}), bodies), SystemClock())
    body = b'{"messages":[{"role":"user","content":"' + b"x" * size + b'"}]}'
    noted = Noted(WHO, "stage", StageKind.CHAT, "model", body, Name(bytes(32)))
    waited, spent = [], []
    for _ in range(BATCHES):
        began_cpu, began = time.process_time(), time.perf_counter()
        for _ in range(REQUESTS):
            recorded = recorder.note(noted)
            assert recorded is not None
            recorder.end(recorded, SAID)
        waited.append((time.perf_counter() - began) / REQUESTS)
        await recorder.flush()
        spent.append((time.process_time() - began_cpu) / REQUESTS)
    return statistics.median(waited) * 1e6, statistics.median(spent) * 1e6


def main() -> None:
    print("bodies, bytes: µs on the loop, µs of CPU in all")
    for bodies in Bodies:
        for size in SIZES:
            with TemporaryDirectory(prefix="dynbranch-bench-") as folder:
                loop_us, all_us = asyncio.run(costs_us(Path(folder), bodies, size))
            print(f"{bodies.value}, {size}: {loop_us:.1f}, {all_us:.0f}")


if __name__ == "__main__":
    main()
