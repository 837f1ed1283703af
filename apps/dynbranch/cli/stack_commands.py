"""``demo`` and ``up``: the commands that run a whole stack."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import typer
from dynbranch.cli.endings import failures_explained, stops_on_signals
from dynbranch.cli.failures import CliFailure
from dynbranch.cli.up_notes import (
    check_engine_url,
    engine_note,
    engine_problem,
    how_to_use,
    reuse_notes,
    served_models,
    template_notes,
)
from dynbranch.demo.branch_runs import (
    SHORT,
    SHOWN_ARMS,
    BranchesFailed,
    arms_table,
    figures_of,
    one_with_spans,
    problems_of,
    run_branches,
)
from dynbranch.demo.flows import MENUS
from dynbranch.demo.report import MIN_REQUESTS
from dynbranch.demo.run import TRACE_FILE, Size, run_demo
from dynbranch.demo.show import (
    LineTeller,
    ProgressWatcher,
    print_branches,
    print_report,
    print_verdict,
    progress_bar,
)
from dynbranch.demo.stack import TEMPLATES, Stack, StackOptions, default_state_dir
from dynbranch.demo.timeline import bars_of, timeline_svg
from dynbranch.demo.tracefile import TraceReceiver, read_spans
from dynbranch.demo.tracetree import trace_tree
from rich.console import Console

_WATCH_S = 0.5


@dataclass(frozen=True, slots=True)
class UpOptions:
    port: int
    data_dir: Path | None
    state_dir: Path | None
    engine_urls: tuple[str, ...]
    engines: int
    slots: int
    threads: int
    context_tokens: int
    traces: bool
    templates: Path | None
    """None: those of the demo."""
    policy: str
    engine_kind: str = "openai"


def run_and_show_demo(
    json_file: Path | None, state_dir: Path | None, threads: int, size: Size, *, branches: bool
) -> None:
    """Exits with 1 when a result differs from the floor's or anything else did not hold."""
    if size.requests < MIN_REQUESTS:
        raise CliFailure(
            f"so few records make {size.requests} distinct requests, and {MIN_REQUESTS} are needed to show "
            "anything",
            "Take '--routing 1 --questions 3' at least, or leave both out.",
        )
    console = Console()
    options = StackOptions(state_dir=state_dir or default_state_dir(), threads=threads)
    console.print(f"Logs, traces and data: {options.state_dir}", soft_wrap=True, highlight=False)
    with stops_on_signals(), failures_explained(), ProgressWatcher(console) as watcher:
        report = run_demo(options, size=size, watcher=watcher)
    print_report(report, console)
    if report.trace_id:
        console.print("One question, as the services saw it:")
        console.print(trace_tree(read_spans(Path(report.traces)), report.trace_id))
    document, problems = report.as_json(), list(report.problems())
    if branches:
        document["branches"], wrong = _run_and_show_branches(console, options.state_dir)
        problems += wrong
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        console.print(f"Also as data: {json_file}", soft_wrap=True, highlight=False)
    print_verdict(report, console)
    if problems:
        raise typer.Exit(1)


def _run_and_show_branches(console: Console, state_dir: Path) -> tuple[dict[str, object], list[str]]:
    """The figures, and what did not hold."""
    with stops_on_signals(), failures_explained(), progress_bar(console) as progress:
        task, told = progress.add_task("branches", total=None), LineTeller(console)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=what[:80], completed=done, total=total or None)
            if not console.is_terminal:
                told.line(what, done, total)

        try:
            seen = asyncio.run(run_branches(tell, SHORT, arms=SHOWN_ARMS, folder=state_dir / "branches"))
        except BranchesFailed as failure:
            raise CliFailure(str(failure), f"Logs: {state_dir}") from None
    figures = figures_of(seen)
    print_branches(arms_table(seen.runs, SHOWN_ARMS), figures, console)
    return {key: figure.as_json() for key, figure in figures.items()}, list(problems_of(figures))


def draw_timeline(picture: Path, state_dir: Path | None) -> None:
    """One workflow, floor beside running ahead."""
    console = Console()
    folder = state_dir or default_state_dir()
    with stops_on_signals(), failures_explained(), console.status("starting the services") as status:
        try:
            floor, ahead, spans = asyncio.run(
                one_with_spans(MENUS, 0, folder, lambda what, _done, _total: status.update(what))
            )
        except BranchesFailed as failure:
            raise CliFailure(str(failure), f"Logs: {folder}") from None
    seconds = f"{floor.latency_ms / 1e3:.1f} s → {ahead.latency_ms / 1e3:.1f} s"
    title = f"{MENUS}, without a person's pauses: {seconds}"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(timeline_svg(bars_of(floor, ahead, spans), title), encoding="utf-8")
    same = "the same to the byte" if ahead.equals(floor) else "NOT the same"
    console.print(f"{title}; results are {same}. {picture}", soft_wrap=True, highlight=False)
    if not ahead.equals(floor):
        raise typer.Exit(1)


def stay_up(options: UpOptions) -> None:
    _check_port(options.port)
    for url in options.engine_urls:
        check_engine_url(url)
    console = Console()
    state = options.state_dir or default_state_dir()
    templates = options.templates or TEMPLATES
    receiver = TraceReceiver(state / TRACE_FILE) if options.traces else None
    absent = {url: problem for url in options.engine_urls if (problem := engine_problem(url))}
    _note(console, *template_notes(templates), *(engine_note(url, why) for url, why in absent.items()))
    with stops_on_signals(), failures_explained(), receiver or nullcontext():
        stack = Stack(
            StackOptions(
                state_dir=state,
                data_dir=options.data_dir,
                gateway_port=options.port,
                engine_urls=options.engine_urls,
                engine_kind=options.engine_kind,
                engines=options.engines,
                slots=options.slots,
                threads=options.threads,
                context_tokens=options.context_tokens,
                traces_endpoint=receiver.endpoint if receiver else "",
                metrics=True,
                templates=templates,
                policy=options.policy,
                inherit=True,
            )
        )
        with stack:
            with console.status("starting the services") as status:
                stack.wait_ready(
                    tell=lambda missing: status.update(f"waiting for {missing[:100]}"), absent_engines=absent
                )
            _print_how_to_use(stack, console, state / TRACE_FILE if receiver else None)
            try:
                while True:
                    stack.check()
                    time.sleep(_WATCH_S)
            except KeyboardInterrupt:
                console.print("Stopping.")


def _print_how_to_use(stack: Stack, console: Console, traces: Path | None) -> None:
    served = served_models(stack.url)
    logs = stack.options.state_dir / "logs"
    if not served:
        _note(console, f"No engine is ready yet: no model is served so far. Its agent says why in {logs}.")
    _note(console, *reuse_notes(served))
    how = how_to_use(
        stack.url,
        served[0]["id"] if served else "",
        logs,
        passages="" if stack.options.engine_urls else stack.passages_url,
        traces=traces,
    )
    console.print("\n".join(how), soft_wrap=True, highlight=False, markup=False)


def _note(console: Console, *notes: str) -> None:
    for note in notes:
        console.print(f"! {note}", soft_wrap=True, highlight=False, markup=False)


def _check_port(port: int) -> None:
    """Before anything starts. Raises CliFailure."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CliFailure(
                f"port {port} can not be used: {error.strerror}",
                "Choose another with --port; 0 is any free one.",
            ) from None
