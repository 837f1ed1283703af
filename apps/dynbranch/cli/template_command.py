"""``template check`` and ``template learn``: a template held against traffic, or proposed from it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import typer
from dynbranch.cli.failures import CliFailure
from dynbranch.domain.errors import DomainError
from dynbranch.domain.template import Template
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.reading import parse_template
from dynbranch.rendering.watching import load_template
from dynbranch.templates.check import Difference, PointCount, Report, check
from dynbranch.templates.learn import NotLearnable, learn, workflow_types
from dynbranch.templates.traffic import Exchange, TrafficInvalid, read_traffic
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_SHOWN_DIFFERENCES = 3


def check_template(file: Path, against: Path | None, *, as_json: bool) -> None:
    """Exits with 1 when anything differs."""
    template = _template(file)
    if against is None:
        _say_valid(file, template, as_json=as_json)
        return
    exchanges = _traffic(against)
    report = check(template, exchanges)
    if not report.requests:
        others = ", ".join(workflow_types(exchanges)) or "none"
        raise CliFailure(
            f"{against} has no request of the workflow type {template.workflow_type!r}",
            f"It has requests of these types: {others}.",
        )
    if as_json:
        Console().print_json(data=_as_json(file, report))
    else:
        _show(file, report)
    if not report.holds:
        raise typer.Exit(1)


def learn_template(
    traffic: Path, workflow_type: str, into: Path | None, version: int, *, as_json: bool
) -> None:
    exchanges = _traffic(traffic)
    types = workflow_types(exchanges)
    if not workflow_type:
        if len(types) != 1:
            raise CliFailure(
                f"{traffic} has requests of {len(types)} workflow types",
                f"Choose one with --workflow-type: {', '.join(types) or 'none is there'}.",
            )
        workflow_type = types[0]
    if workflow_type not in types:
        raise CliFailure(
            f"{traffic} has no request of the workflow type {workflow_type!r}",
            f"It has requests of these types: {', '.join(types) or 'none'}.",
        )
    try:
        text = learn(exchanges, workflow_type, version)
    except NotLearnable as error:
        raise CliFailure(str(error)) from None
    template = parse_template(text, str(into or "the proposal"), JinjaRenderer)
    report = check(template, exchanges)
    if into is not None:
        into.write_text(text, encoding="utf-8")
    if as_json:
        told = {**_as_json(into, report), "workflow_type": workflow_type, "template": text}
        Console().print_json(data=told)
        return
    if into is None:
        sys.stdout.write(text)
    seen = sum(count.seen for count in report.stages.values())
    equal = sum(count.equal for count in report.stages.values())
    Console(stderr=True).print(
        f"{equal} of {seen} recorded requests are written byte for byte by this proposal. "
        "Its comments say what to look at.",
        highlight=False,
        soft_wrap=True,
    )


def _template(file: Path) -> Template:
    try:
        return load_template(file).template
    except DomainError as error:
        raise CliFailure(error.message, error.advice) from None
    except OSError as error:
        raise CliFailure(f"{file} can not be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CliFailure(f"{file} can not be read: {error}") from None


def _traffic(file: Path) -> list[Exchange]:
    try:
        return read_traffic(file)
    except TrafficInvalid as error:
        raise CliFailure(str(error), "docs/templates.md describes a line of traffic.") from None
    except OSError as error:
        raise CliFailure(f"{file} can not be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CliFailure(f"{file} can not be read: {error}") from None


def _say_valid(file: Path, template: Template, *, as_json: bool) -> None:
    told = {
        "file": str(file),
        "workflow_type": template.workflow_type,
        "version": template.version,
        "stages": [stage.name for stage in template.stages],
        "decision_points": [point.name for point in template.decision_points],
    }
    console = Console()
    if as_json:
        console.print_json(data=told)
        return
    counted = f"{len(template.stages)} stages, {len(template.decision_points)} decision points"
    console.print(f"{escape(str(file))}: valid; {template.workflow_type}, {counted}", highlight=False)


def _as_json(file: Path | None, report: Report) -> dict[str, Any]:
    told = asdict(report)
    for name, count in report.points.items():
        told["points"][name]["ambiguous"] = dict(count.ambiguous)
    return {"file": None if file is None else str(file), "holds": report.holds, **told}


def _show(file: Path, report: Report) -> None:
    console = Console()
    console.print(
        f"{escape(str(file))}: {report.requests} requests of {report.workflows} workflows", highlight=False
    )
    stages = Table("stage", "requests", "byte-equal", "as fills", "byte-equal", "told apart untagged")
    for name, count in report.stages.items():
        fills = (str(count.fills), str(count.fills_equal)) if count.fills else ("–", "–")
        stages.add_row(escape(name), str(count.seen), str(count.equal), *fills, str(count.told_apart))
    console.print(stages)
    if report.points:
        console.print(_points(report))
    for count in report.stages.values():
        for difference in count.differences[:_SHOWN_DIFFERENCES]:
            _show_difference(console, difference)
    for tag in report.unrecognised[:_SHOWN_DIFFERENCES]:
        console.print(f"✗ no stage of the template: {escape(tag)}", highlight=False)
    verdict = "holds: every request is written byte for byte" if report.holds else "differs"
    console.print(f"The template {verdict}.", highlight=False)


def _points(report: Report) -> Table:
    table = Table("decision point", "decisions", "read", "none", "ambiguous", "on the menu", "visible after")
    for name, count in report.points.items():
        reasons = ", ".join(f"{reason}: {n}" for reason, n in count.ambiguous.items())
        menu = f"{count.in_menu} of {count.offered}" if count.offered else "–"
        table.add_row(
            escape(name),
            str(count.asked),
            str(count.read),
            str(count.nothing),
            reasons or "0",
            menu,
            _visibility(count),
        )
    return table


def _visibility(count: PointCount) -> str:
    return f"{median(count.visible_after):.0%} of the output" if count.visible_after else "–"


def _show_difference(console: Console, difference: Difference) -> None:
    kind = " as a fill" if difference.as_fill else ""
    where = f"{difference.workflow_id}: {difference.stage} no. {difference.occurrence + 1}{kind}"
    if difference.problem:
        console.print(f"✗ {escape(where)}: {escape(difference.problem)}", highlight=False, soft_wrap=True)
        return
    slot = f"in the slot {difference.slot!r}" if difference.slot else "in constant text"
    console.print(
        f"✗ {escape(where)}: differs at byte {difference.offset}, {escape(slot)}\n"
        f"    sent     …{escape(repr(difference.sent))}…\n"
        f"    rendered …{escape(repr(difference.rendered))}…",
        highlight=False,
        soft_wrap=True,
    )
