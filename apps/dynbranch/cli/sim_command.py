"""``sim``: what workflows would take on engines that are not at hand, with DynBranch and without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from dynbranch.cli.failures import CliFailure, for_people

if TYPE_CHECKING:
    from dynbranch.enginemodel.parameters import BatchParameters
    from dynbranch.sim.fleet.workflows import Workload
    from dynbranch.sim.whatif import Answer, Question
    from rich.table import Table

_FLOOR = "floor"


@for_people
def sim(
    workload: Annotated[
        str, typer.Option(help="routing, react, subagent, hci, commands or a recorded trace's name.")
    ] = "",
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="Your own traffic, as a gateway records it; files go together.", exists=True),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            help="With --trace: the template of its workflow type: work may run ahead.", exists=True
        ),
    ] = None,
    preset: Annotated[str, typer.Option(help="The kind of engine.")] = "h200-qwen3-32b",
    engines: Annotated[int, typer.Option(min=1, help="How many.")] = 4,
    slots: Annotated[int, typer.Option(min=1, help="Requests at once in each.")] = 64,
    rate: Annotated[
        float | None, typer.Option(min=0.0001, help="Workflows a second; else as recorded, or published.")
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="Workflows of a --workload; 0: as the evaluation.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of a --workload, and of what arms draw.")] = 1,
    arms: Annotated[
        str, typer.Option(help="floor, instcache, helium, parrot, dsp, spagent, c1, c2, dynbranch, always, …")
    ] = "floor,c1,c2,dynbranch",
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of whole data sets, in place of the shipped records.", exists=True),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")] = False,
) -> None:
    """Simulate workflows on engines that are not at hand: how long they take, arm beside arm."""
    if bool(workload) == bool(trace):
        raise CliFailure("say what is simulated", "Either --workload routing or --trace traffic.jsonl.")
    if template is not None and not trace:
        raise CliFailure("--template is for --trace", "A --workload has a template of its own.")
    names = list(dict.fromkeys(name.strip() for name in arms.split(",") if name.strip()))
    if trace:
        asked, history, notes = _recorded(trace, template, rate)
    else:
        asked, history, notes = _published(workload, rate, count, seed, data)
    question = _question(asked, _parameters(preset, slots), engines, seed, history)
    found = _asked(question, names)
    if json:
        import json as json_module

        typer.echo(json_module.dumps(_as_json(question, preset, found, notes), indent=1, ensure_ascii=False))
        return
    _show(question, preset, found, notes)


def _recorded(
    traces: Sequence[Path], template: Path | None, rate: float | None
) -> tuple[Workload, Any, tuple[str, ...]]:
    from dynbranch.rendering.problems import TemplateInvalid
    from dynbranch.rendering.reading import parse_template
    from dynbranch.sim.whatif import NoAnswer, at_rate
    from dynbranch.sim.workloads.traffic import NothingToReplay, from_traffic
    from dynbranch.templates.traffic import TrafficInvalid

    try:
        known = parse_template(template.read_text("utf-8"), template.name) if template is not None else None
        found = from_traffic(traces, template=known)
        workload = found.workload if rate is None else at_rate(found.workload, rate)
    except TemplateInvalid as problem:
        raise CliFailure(str(problem), "dynbranch template check says where.") from None
    except TrafficInvalid as problem:
        raise CliFailure(str(problem), "docs/operating.md says how traffic is recorded.") from None
    except (NothingToReplay, NoAnswer) as problem:
        raise CliFailure(str(problem)) from None
    return workload, (), found.notes


def _published(
    name: str, rate: float | None, count: int, seed: int, data: Path | None
) -> tuple[Workload, Any, tuple[str, ...]]:
    from dynbranch.sim.workloads.workload import UnknownWorkload, workload

    try:
        found = workload(name, rate=rate, count=count, seed=seed, data=data)
        before = workload(name, rate=rate, count=count, seed=seed + 1000, data=data)
    except (UnknownWorkload, ValueError) as problem:
        raise CliFailure(str(problem)) from None
    return found, before.workflows, ()


def _parameters(preset: str, slots: int) -> BatchParameters:
    from dataclasses import replace

    from dynbranch.enginemodel.parameters import BatchParameters, UnknownPreset
    from dynbranch.enginemodel.parameters import preset as preset_of

    try:
        parameters = preset_of(preset)
    except UnknownPreset as problem:
        raise CliFailure(str(problem)) from None
    if not isinstance(parameters, BatchParameters):
        raise CliFailure(f"{preset} is no engine that requests share", "Choose a preset of a real one.")
    return replace(parameters, slots=slots)


def _question(
    workload: Workload, parameters: BatchParameters, engines: int, seed: int, history: Any
) -> Question:
    from dynbranch.sim.whatif import Question

    return Question(workload, parameters, engines, seed, tuple(history))


def _asked(question: Question, names: Sequence[str]) -> list[Answer]:
    from dynbranch.demo.show import progress_bar
    from dynbranch.sim.arms import UnknownArm
    from dynbranch.sim.whatif import NoAnswer, answers
    from rich.console import Console

    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("simulating", total=len(names))

        def told(name: str) -> None:
            progress.update(task, description=f"{name} is done", advance=1)

        try:
            return answers(question, names, told)
        except (NoAnswer, UnknownArm) as problem:
            raise CliFailure(str(problem)) from None


def _as_json(
    question: Question, preset: str, found: Sequence[Answer], notes: Sequence[str]
) -> dict[str, Any]:
    from dynbranch.demo.measures import quantile, ratio

    base = next((one for one in found if one.arm == _FLOOR), None)
    arms: dict[str, dict[str, Any]] = {}
    for one in found:
        latencies = one.latencies_s
        arms[one.arm] = {
            "mean_s": sum(latencies) / len(latencies),
            "p50_s": quantile(latencies, 0.5).as_json(),
            "p99_s": quantile(latencies, 0.99).as_json(),
            "outcomes": dict(one.outcomes),
            "fills": one.fills,
            "fill_slot_s": one.used_s,
            "discarded_slot_s": one.discarded_s,
            "utilisation": one.utilisation,
            "wrong": one.wrong,
        }
        if base is not None:
            pairs = list(zip(latencies, base.latencies_s, strict=True))
            arms[one.arm]["mean_over_floor"] = ratio(pairs).as_json()
    return {
        "workload": question.workload.name,
        "workflows": len(question.workload.workflows),
        "preset": preset,
        "engines": question.engines,
        "slots": question.parameters.slots,
        "seed": question.seed,
        "notes": list(notes),
        "arms": arms,
    }


def _show(question: Question, preset: str, found: Sequence[Answer], notes: Sequence[str]) -> None:
    from dynbranch.cli.screens import console_for_tables

    console = console_for_tables()
    told = _as_json(question, preset, found, notes)
    engines = f"{question.engines} × {preset}, {question.parameters.slots} slots each"
    console.print(f"{told['workload']}: {told['workflows']} workflows on {engines}")
    for note in notes:
        console.print(f"  {note}", style="dim")
    console.print(_table(told))


def _table(told: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(title="Seconds a workflow, without a person's pauses")
    for heading in ("arm", "mean", "over floor", "95 %", "p50", "p99", "reused", "fills", "slots used"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for name, one in told["arms"].items():
        over = one.get("mean_over_floor")
        requests = sum(one["outcomes"].values())
        reused = requests - one["outcomes"].get("miss", 0)
        table.add_row(
            name,
            f"{one['mean_s']:.2f}",
            f"{over['value']:.3f}" if over else "",
            f"{over['ci_low']:.3f}–{over['ci_high']:.3f}" if over else "",
            f"{one['p50_s']['value']:.2f}",
            f"{one['p99_s']['value']:.2f}",
            f"{reused / requests:.0%}",
            f"{one['fills'] / told['workflows']:.2f}",
            f"{one['utilisation']:.0%}",
        )
    return table
