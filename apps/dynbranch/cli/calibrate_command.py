"""``calibrate``: what fills cost the canonical requests of a running engine, as a curve file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from dynbranch.cli.failures import CliFailure, for_people

if TYPE_CHECKING:
    from dynbranch.calibration.run import Calibrated, Wanted
    from rich.table import Table

_ATTEMPT = "Is the engine up, and is --url, or --agent, its address?"


@for_people
def calibrate(
    agent: Annotated[str, typer.Option(help="host:port of the engine's agent.")] = "",
    url: Annotated[str, typer.Option(help="Base URL of the engine itself, in place of an agent.")] = "",
    output: Annotated[Path, typer.Option("--output", "-o", help="The curve file.", dir_okay=False)] = Path(
        "price-curve.json"
    ),
    plot: Annotated[
        Path | None,
        typer.Option(help="Also draw the prior and the measured curve: .svg, .png or .pdf.", dir_okay=False),
    ] = None,
    model: Annotated[str, typer.Option(help="Model to ask; else the engine's first.")] = "",
    slots: Annotated[int, typer.Option(min=0, help="Requests it runs at once; 0: as its agent says.")] = 0,
    kv_budget_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of KV cache that fills may hold; 0: as its agent says.")
    ] = 0,
    context_tokens: Annotated[
        int, typer.Option(min=0, help="Prompt and output of one request; 0: as it says itself.")
    ] = 0,
    most_fills: Annotated[int, typer.Option(min=1, help="The most fills beside one request.")] = 48,
    seconds: Annotated[
        float, typer.Option(min=5, max=600, help="How long to measure; more is more exact.")
    ] = 90.0,
    api_key: Annotated[
        str, typer.Option(envvar="DYNBRANCH_ENGINE_API_KEY", help="Sent to the engine as a bearer token.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the curve file in place of a table.")] = False,
) -> None:
    """Measure how much fills slow an engine's canonical requests down. The engine should be idle."""
    from dynbranch.calibration.picture import can_draw
    from dynbranch.calibration.run import Wanted

    if bool(agent) == bool(url):
        raise CliFailure("say which engine", "Either --agent host:port or --url http://host:port.")
    if plot is not None and not can_draw():
        raise CliFailure("a plot needs matplotlib", "pip install 'dynbranch[plot]', or leave --plot out.")
    wanted = Wanted(
        agent=agent,
        url=url,
        model=model,
        slots=slots,
        kv_budget_tokens=kv_budget_tokens,
        context_tokens=context_tokens,
        most_fills=most_fills,
        seconds=seconds,
        api_key=api_key,
    )
    done = _run(wanted, quiet=json)
    _write(done, output, plot)
    if json:
        import json as json_module

        typer.echo(json_module.dumps(done.document, indent=1, ensure_ascii=False))
        return
    _show(done, output, plot)


def _run(wanted: Wanted, *, quiet: bool) -> Calibrated:
    import asyncio

    from dynbranch.calibration.curves import TooFewProbes
    from dynbranch.calibration.plan import NothingToMeasure
    from dynbranch.calibration.probing import ProbeFailed
    from dynbranch.calibration.run import calibrate as measured
    from dynbranch.demo.show import LineTeller, progress_bar
    from dynbranch.runtime.clock import SystemClock
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with progress_bar(console) as progress:
        task, told = progress.add_task("calibrate", total=100), LineTeller(console)

        def tell(what: str, share: float) -> None:
            percent = min(100, round(100 * share))
            progress.update(task, description=f"calibrate: {what}", completed=percent)
            if not console.is_terminal:
                told.line(what, percent, 100)

        try:
            return asyncio.run(measured(wanted, SystemClock(), tell))
        except ProbeFailed as error:
            raise CliFailure(str(error), _ATTEMPT) from None
        except NothingToMeasure as error:
            raise CliFailure(
                str(error), "Give the engine more slots, or leave its price at the prior."
            ) from None
        except TooFewProbes as error:
            raise CliFailure(str(error), "More --seconds, or a smaller --most-fills.") from None
        except KeyboardInterrupt:
            typer.echo("dynbranch: stopped", err=True)
            raise typer.Exit(130) from None


def _write(done: Calibrated, output: Path, plot: Path | None) -> None:
    from dynbranch.calibration.document import write_document
    from dynbranch.calibration.picture import draw

    try:
        write_document(output, done.document)
        if plot is not None:
            draw(plot, done.curves, done.prior, f"{done.machine.model}, {done.machine.slots} slots")
    except (OSError, ValueError) as error:
        raise CliFailure(f"the result could not be written: {error}") from None


def _show(done: Calibrated, output: Path, plot: Path | None) -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(done))
    for note in done.notes:
        console.print(f"  {note}", markup=False, highlight=False)
    paths = output if plot is None else f"{output}, {plot}"
    console.print(f"Written: {paths}", soft_wrap=True, highlight=False)
    console.print(f"DYNBRANCH_CONTROLLER_PRICE_CURVE={output} makes the controller use it.", highlight=False)


def _table(done: Calibrated) -> Table:
    from dynbranch.calibration.curves import kv_share
    from rich.table import Table

    table = Table(title=f"A canonical request of {done.machine.model}", title_justify="left")
    for heading in ("beside fills", "with KV budget", "takes", "middle half", "rounds"):
        table.add_column(heading, justify="right")
    for one in done.stretches.values():
        share = kv_share(one.level, done.machine)
        table.add_row(
            str(one.level.fills),
            f"{share:.0%}" if one.level.context_tokens else "",
            f"{one.median:.3f} ×",
            f"{one.low:.3f} – {one.high:.3f}",
            str(one.n),
        )
    return table
