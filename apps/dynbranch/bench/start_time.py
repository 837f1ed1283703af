"""How long the whole stack with the embedded engine takes from nothing to its first answer."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from dynbranch.bench.result import Measured, Tell
from dynbranch.demo.harness import Harness, models
from dynbranch.demo.measures import median
from dynbranch.demo.stack import Stack, StackOptions

RUNS = 7
_NO_TRACE = "00-" + "1" * 32 + "-" + "1" * 16 + "-00"


def measure(tell: Tell, *, runs: int = RUNS) -> Measured:
    """Figure ``embedded_stack_s``: the median over ``runs`` cold starts, each with an empty store."""
    seen: list[dict[str, float]] = []
    for number in range(runs):
        tell("cold start", number, runs)
        seen.append(one_start())
    tell("cold start", runs, runs)
    return Measured({"embedded_stack_s": median([run["answered_s"] for run in seen])}, {"runs": seen})


def one_start() -> dict[str, float]:
    """Seconds from the first process to all ready, and to the first completion answered."""
    with TemporaryDirectory(prefix="dynbranch-start-") as folder:
        begin = time.perf_counter()
        with Stack(StackOptions(state_dir=Path(folder))) as stack:
            stack.wait_ready()
            ready_s = time.perf_counter() - begin
            harness = Harness(stack.url, models(stack.url)[0])
            try:
                workflow = harness.workflow("start", "first", "start", _NO_TRACE)
                harness.chat(workflow, "hello", [{"role": "user", "content": "Say hello."}], max_tokens=8)
            finally:
                harness.close()
            answered_s = time.perf_counter() - begin
    return {"ready_s": round(ready_s, 3), "answered_s": round(answered_s, 3)}
