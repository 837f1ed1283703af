"""What a person sees of the demonstration: a spinner, a progress bar, a table."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from dynbranch.demo.measures import Figure
from dynbranch.demo.report import Arm, Report
from dynbranch.demo.run import Watcher
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

OUTCOMES = ("hit", "joined", "miss", "bypass")
_LABELS_SHOWN = 6
_LINE_EVERY_S = 10.0
_ROWS = (
    "disabled: the engine alone; twice, to see that it repeats itself. = floor: results that equal the first "
    "of these. after, disabled: the questions asked of the engine alone once more, since passages have "
    "changed; what came after the writes is held against these."
)


def progress_bar(console: Console) -> Progress:
    """Of long work on a terminal; elsewhere nothing is drawn."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class LineTeller:
    """A line a step where no bar is drawn, and one every ``every_s`` at most."""

    def __init__(self, console: Console, every_s: float = 1.0) -> None:
        self._console = console
        self._every_s = every_s
        self._began = time.monotonic()
        self._last = -math.inf

    def line(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < self._every_s:
            return
        self._last = now
        count = f" {done}/{total}" if total else ""
        self._console.print(f"  {now - self._began:4.0f} s {what}{count}", markup=False, highlight=False)


class ProgressWatcher(Watcher):
    """Draws on a terminal; elsewhere it prints a line a pass, and one now and then within."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = progress_bar(console)
        self._task = self._progress.add_task("starting the services", total=None)
        self._lines = LineTeller(console, _LINE_EVERY_S)
        self._title = ""
        self._done = self._total = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def waiting_for(self, missing: str) -> None:
        self._progress.update(self._task, description=f"waiting for {escape(missing)[:100]}")

    def ready(self, seconds: float, tasks: int) -> None:
        self._console.print(f"All services are ready after {seconds:.1f} s.")
        self._total = tasks
        self._progress.update(self._task, description="running", total=tasks)

    def arm(self, title: str) -> None:
        self._title = title
        self._progress.update(self._task, description=title)
        if not self._console.is_terminal:
            self._console.print(f"  {title} …")

    def task_done(self) -> None:
        self._done += 1
        self._progress.advance(self._task)
        if not self._console.is_terminal:
            self._lines.line(f"{self._title}: records of all passes", self._done, self._total)


def print_report(report: Report, console: Console) -> None:
    console.print(_arms(report))
    console.print(_ROWS, highlight=False)
    figures = report.figures()
    speedup = figures["mean_floor_over_second_pass"]
    console.print(
        f"{figures['requests'].value:.0f} distinct requests of {report.records} records; "
        f"model {report.model}. "
        f"The second pass was {speedup.value:.0f} times faster than the floor "
        f"(95 % interval {speedup.ci_low:.0f}–{speedup.ci_high:.0f})."
    )
    _print_writes(report, console)
    console.print(f"Traces: {report.traces}", soft_wrap=True, highlight=False)


def print_verdict(report: Report, console: Console) -> None:
    """The last that is said, and what to do next."""
    problems = report.problems()
    for problem in problems:
        console.print(f"[bold red]✗[/bold red] {escape(problem)}")
    if not problems:
        console.print(
            "[bold green]✓[/bold green] Every result equalled the floor's: text, reasoning, tool calls, "
            "finish and token counts. Nothing stale was served, and what the writes did not touch still hit."
        )
        console.print(
            "Next: 'make up' (or 'dynbranch up') keeps such a stack running; point a client at "
            "http://127.0.0.1:8080/v1. 'dynbranch up --engine-url http://HOST:PORT' does so before an engine "
            "of your own.",
            highlight=False,
        )


def print_branches(rows: Sequence[Sequence[str]], figures: Mapping[str, Figure], console: Console) -> None:
    """Mean seconds of a workflow, and of the other ways what they take of it."""
    headings, *others = rows
    table = Table(
        title="Workflows that decide as they go: mean time, and the other ways over it (95 % interval)",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in others:
        table.add_row(*row)
    console.print(table)
    equal, unsafe, finished = (
        figures[key] for key in ("byte_equal_share", "unsafe_splices", "finished_at_demand_share")
    )
    good = equal.value == 1.0 and not unsafe.value
    mark = "[bold green]✓[/bold green]" if good else "[bold red]✗[/bold red]"
    console.print(
        f"{mark} {equal.value * equal.n:.0f} of {equal.n} workflows equalled the floor's to the byte; "
        f"{unsafe.value:.0f} of {unsafe.n} reused results were wrong; of {finished.n} that ran ahead and "
        f"were asked for, {finished.value * finished.n:.0f} were ready by then."
    )


def _arms(report: Report) -> Table:
    table = Table(
        title="The main job on real input",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("pass", no_wrap=True)
    for heading in ("calls", *OUTCOMES, "mean ms", "p50 ms", "= floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in report.arms:
        table.add_row(*_row(report, arm))
    return table


def _row(report: Report, arm: Arm) -> list[str]:
    counts = arm.outcomes()
    shown = [str(counts.pop(outcome, 0) or "·") for outcome in OUTCOMES]
    title = arm.title + _others(counts)
    held = report.equality_of(arm)
    equal = "" if held is None else f"{held.equal}/{held.total}"
    if held is not None and not held.holds:
        equal = f"[bold red]{equal}[/bold red]"
    return [title, str(len(arm.calls)), *shown, _ms(arm.mean_ms()), _ms(arm.p50_ms()), equal]


def _ms(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _others(counts: Counter[str]) -> str:
    return "".join(f"\n  {outcome}: {count}" for outcome, count in counts.items())


def _print_writes(report: Report, console: Console) -> None:
    for write in report.writes:
        console.print(
            f"Write to {write.record} ({escape(write.title)}): version {write.version}, "
            f"{write.entries} results invalidated.",
            highlight=False,
        )
    labels = Counter((gone.label, gone.direct) for gone in report.gone)
    for (label, direct), count in labels.most_common(_LABELS_SHOWN):
        why = "read what was written" if direct else "were made from a result that fell"
        console.print(f"  {count:3d} × {escape(label or '(no label)')}: they {why}", highlight=False)
