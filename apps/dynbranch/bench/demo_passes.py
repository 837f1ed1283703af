"""The demonstration as a benchmark: every record, every pass."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from dynbranch.bench.result import Measured, Tell
from dynbranch.demo.run import Size, Watcher, run_demo
from dynbranch.demo.stack import StackOptions


class _Telling(Watcher):
    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._title = "starting the services"
        self._done = self._total = 0

    def waiting_for(self, missing: str) -> None:
        self._tell(f"waiting for {missing}", 0, 0)

    def ready(self, seconds: float, tasks: int) -> None:
        self._total = tasks

    def arm(self, title: str) -> None:
        self._title = title
        self._tell(title, self._done, self._total)

    def task_done(self) -> None:
        self._done += 1
        self._tell(self._title, self._done, self._total)


def measure(tell: Tell, *, size: Size = Size()) -> Measured:  # noqa: B008 -- a frozen value
    with TemporaryDirectory(prefix="dynbranch-bench-") as folder:
        report = run_demo(StackOptions(state_dir=Path(folder)), size=size, watcher=_Telling(tell))
    raw = report.as_json()
    for temporary in ("figures", "traces"):
        del raw[temporary]
    return Measured(report.figures(), raw, tuple(report.problems()))
