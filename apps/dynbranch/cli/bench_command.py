"""``bench``: run a benchmark, show its figures, write its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from dynbranch.bench.registry import BENCHES, Bench, Wishes
from dynbranch.bench.result import BenchFailed, Measured, Surroundings, result_json, write_result
from dynbranch.cli.endings import failures_explained, stops_on_signals
from dynbranch.cli.failures import CliFailure
from dynbranch.demo.show import LineTeller, progress_bar
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def list_benches() -> None:
    table = Table("name", "what it measures")
    for bench in BENCHES.values():
        table.add_row(bench.name, bench.about)
    Console().print(table)


def run_bench(name: str, json_file: Path | None, wishes: Wishes) -> None:
    """Exits with 1 when something that the benchmark checks did not hold."""
    bench = BENCHES.get(name)
    if bench is None:
        raise CliFailure(f"there is no benchmark {name!r}", f"There are: {', '.join(sorted(BENCHES))}.")
    _refuse_what_it_can_not(bench, wishes)
    console = Console()
    around = Surroundings.now()
    with stops_on_signals(), failures_explained(), progress_bar(console) as progress:
        task, told = progress.add_task(name, total=None), LineTeller(console)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=f"{name}: {what[:80]}", completed=done, total=total or None)
            if not console.is_terminal:
                told.line(what, done, total)

        try:
            measured = bench.load(wishes)(tell)
        except BenchFailed as error:
            raise CliFailure(
                str(error), "Logs are gone with the run; a busy machine may need a second try."
            ) from None
    _show(name, measured, console)
    if json_file is not None:
        write_result(json_file, result_json(name, measured, around))
        console.print(f"Written: {json_file}", soft_wrap=True, highlight=False)
    if measured.failures:
        raise typer.Exit(1)


def _refuse_what_it_can_not(bench: Bench, wishes: Wishes) -> None:
    others = BENCHES.values()
    for wanted, takers, problem, option in (
        (wishes.engine_url, [o for o in others if o.takes_engine], "brings its own engines", "--engine-url"),
        (wishes.data, [o for o in others if o.takes_data], "reads no records", "--data"),
        (wishes.quick, [o for o in others if o.takes_quick], "has no short form", "--quick"),
        (wishes.parts, [o for o in others if o.takes_parts], "has no parts", "--figure"),
        (wishes.pictures, [o for o in others if o.takes_parts], "draws no pictures", "--pictures"),
    ):
        if wanted and bench not in takers:
            names = ", ".join(one.name for one in takers)
            raise CliFailure(f"{bench.name} {problem}", f"{option} is for: {names}.")


def _show(name: str, measured: Measured, console: Console) -> None:
    table = Table(title=f"bench {name}", title_justify="left")
    table.add_column("figure")
    for heading in ("value", "95 % interval", "n"):
        table.add_column(heading, justify="right")
    for key, figure in sorted(measured.figures.items()):
        interval = "" if figure.ci_low == figure.ci_high else f"{figure.ci_low:.4g} – {figure.ci_high:.4g}"
        table.add_row(key, f"{figure.value:.6g}", interval, str(figure.n))
    console.print(table)
    if measured.table:
        _show_rows(measured.table, measured.table_title, console)
    for title, rows in measured.tables:
        _show_rows(rows, title, console)
    for failure in measured.failures:
        console.print(f"✗ {failure}", markup=False)


def _show_rows(rows: Sequence[tuple[str, ...]], title: str, console: Console) -> None:
    headings, *others = rows
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in others:
        table.add_row(*row)
    console.print(table)
