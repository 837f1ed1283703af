"""``csl check``, ``csl backup`` and ``csl restore``: the data directory of a store that does not run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import typer
from dynbranch.cli.failures import CliFailure
from dynbranch.csl import copies
from dynbranch.csl.rocks import DataDirectory, Sizes
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import UnixMs
from rich.console import Console
from rich.markup import escape


def check_directory(path: Path, *, as_json: bool) -> None:
    """Exits with 1 when anything is wrong."""
    report = _told(lambda: copies.check(_existing(path), Sizes()))
    if as_json:
        Console().print_json(data={"directory": str(path), "whole": not report.problems, **asdict(report)})
    else:
        _show(path, report)
    if report.problems:
        raise typer.Exit(1)


def back_up_directory(path: Path, target: Path, *, as_json: bool) -> None:
    report = _told(lambda: copies.back_up(_existing(path), target, Sizes(), _now()))
    if as_json:
        Console().print_json(data={"directory": str(path), "backup": str(target), **asdict(report)})
        return
    Console().print(
        f"{report.entries} entries as of {report.epoch}.{report.sequence} are in {target}",
        highlight=False,
        soft_wrap=True,
    )


def restore_directory(source: Path, path: Path, *, as_json: bool) -> None:
    report = _told(lambda: copies.restore(source, DataDirectory(path), Sizes(), _now()))
    if as_json:
        Console().print_json(data={"backup": str(source), "directory": str(path), **asdict(report)})
        return
    Console().print(
        f"{report.entries} entries were restored to {path}. The next start begins a new epoch and drops "
        "those that rest on any read, since writes after the copy are not known.",
        highlight=False,
        soft_wrap=True,
    )


def _existing(path: Path) -> DataDirectory:
    if not path.is_dir():
        raise CliFailure(f"there is no directory {path}", "Name the data directory of a store.")
    return DataDirectory(path)


def _now() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def _told(act: Callable[[], copies.Report]) -> copies.Report:
    try:
        return act()
    except DomainError as error:
        raise CliFailure(error.message, error.advice) from None


def _show(path: Path, report: copies.Report) -> None:
    console = Console()
    for problem in report.problems:
        console.print(f"✗ {escape(problem)}", highlight=False, soft_wrap=True)
    version = f"{report.epoch}.{report.sequence}"
    at = f"{report.entries} entries, {report.payload_bytes} bytes of results, at {version}"
    verdict = f"{len(report.problems)} problems" if report.problems else "whole"
    console.print(f"{escape(str(path))}: {verdict}; {at}", highlight=False, soft_wrap=True)
