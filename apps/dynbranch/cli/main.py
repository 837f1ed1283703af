"""The ``dynbranch`` command. Only what every command needs is imported here, so that help comes at once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from dynbranch.cli.calibrate_command import calibrate
from dynbranch.cli.failures import for_people
from dynbranch.cli.installed import check_stack
from dynbranch.cli.sim_command import sim
from dynbranch.cli.stub_command import stub_engine

app = typer.Typer(
    name="dynbranch",
    help="Exact, fresh reuse of agent results at the model-API boundary.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"dynbranch {version('dynbranch')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Say the version.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Exact, fresh reuse of agent results at the model-API boundary."""


app.command(name="stub-engine")(stub_engine)
app.command(name="calibrate")(calibrate)
app.command(name="sim")(sim)

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Also write the result as JSON.", dir_okay=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Gateway = Annotated[
    str | None,
    typer.Option(help="URL of the gateway; else $DYNBRANCH_URL, else the stack that was started here."),
]
StateDir = Annotated[
    Path | None, typer.Option(help="Folder for logs, traces and data; else ./var/<time>.", file_okay=False)
]
Threads = Annotated[
    int, typer.Option(min=0, help="Threads of each engine; 0: one less than there are cores.")
]
Slots = Annotated[int, typer.Option(min=1, help="Generations at once per engine.")]


class Policy(Enum):
    """What runs ahead, as the controller names it."""

    OFF = "off"
    ALWAYS = "always"
    STATIC = "static"
    PRICED = "priced"


class EngineKind(Enum):
    """How an engine of one's own is spoken to."""

    OPENAI = "openai"
    VLLM = "vllm"
    SGLANG = "sglang"


@app.command()
@for_people
def demo(
    json: JsonFile = None,
    state_dir: StateDir = None,
    threads: Threads = 0,
    routing: Annotated[int | None, typer.Option(min=1, help="So many routing records; else all.")] = None,
    questions: Annotated[int | None, typer.Option(min=1, help="So many questions; else all.")] = None,
    branches: Annotated[
        bool, typer.Option(help="Also four workflows with decisions, with and without running ahead.")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Only one workflow, without and with branches, as an SVG picture.", dir_okay=False),
    ] = None,
) -> None:
    """The main job on real input with a real small model; prints tables and ends."""
    check_stack(embedded=True)
    from dynbranch.cli.stack_commands import draw_timeline, run_and_show_demo
    from dynbranch.demo.run import Size

    if timeline is not None:
        draw_timeline(timeline, state_dir)
        return
    run_and_show_demo(json, state_dir, threads, Size(routing, questions), branches=branches)


@app.command()
@for_people
def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0: any free one.")] = 8080,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keeps results and passages for the next time.", file_okay=False)
    ] = None,
    state_dir: StateDir = None,
    engine_url: Annotated[
        list[str] | None,
        typer.Option(help="An engine of your own, by its base URL, in place of embedded ones. Repeatable."),
    ] = None,
    engine_kind: Annotated[
        EngineKind, typer.Option(help="What the engines at --engine-url are.")
    ] = EngineKind.OPENAI,
    engines: Annotated[int, typer.Option(min=1, max=64, help="Embedded engines.")] = 1,
    slots: Slots = 4,
    threads: Threads = 0,
    context_tokens: Annotated[int, typer.Option(min=64, help="Prompt and output of one request.")] = 4096,
    traces: Annotated[bool, typer.Option(help="Write every trace to a file of the state folder.")] = False,
    templates: Annotated[
        Path | None,
        typer.Option(help="Folder of templates; else those of the demo.", exists=True, file_okay=False),
    ] = None,
    policy: Annotated[Policy, typer.Option(help="What runs ahead of decisions.")] = Policy.PRICED,
) -> None:
    """The whole stack, with a small model or before engines of your own; stays until Ctrl-C."""
    urls = tuple(engine_url or ())
    check_stack(embedded=not urls)
    from dynbranch.cli.stack_commands import UpOptions, stay_up

    stay_up(
        UpOptions(
            port=port,
            data_dir=data_dir,
            state_dir=state_dir,
            engine_urls=urls,
            engines=engines,
            slots=slots,
            threads=threads,
            context_tokens=context_tokens,
            traces=traces,
            templates=templates,
            policy=policy.value,
            engine_kind=engine_kind.value,
        )
    )


@app.command()
@for_people
def weights() -> None:
    """Install the small model that 'demo' and 'up' run where no engine is named: 90 MB, once."""
    from dynbranch.cli.weights_command import install_weights

    install_weights()


@app.command()
@for_people
def bench(
    name: Annotated[str, typer.Argument(help="Which one; without a name they are listed.")] = "",
    json: JsonFile = None,
    engine_url: Annotated[
        str, typer.Option(help="An engine that runs already, for a benchmark of a real one.")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="A folder of more records, for a benchmark of them.", exists=True)
    ] = None,
    quick: Annotated[bool, typer.Option(help="A short run, to see whether it works.")] = False,
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Of 'paper': only this figure, or 'table 2'; may be given more than once."),
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Of 'paper': a folder for pictures.", file_okay=False)
    ] = None,
) -> None:
    """Run a benchmark."""
    from dynbranch.bench.registry import Wishes
    from dynbranch.cli.bench_command import list_benches, run_bench

    if name:
        run_bench(name, json, Wishes(engine_url, data, quick, tuple(figure or ()), pictures))
    else:
        list_benches()


@app.command()
@for_people
def settings(
    service: Annotated[str, typer.Argument(help="gateway, controller, csl or engine-agent.")],
    json: AsJson = False,
) -> None:
    """Every setting of a service: its variable, its default, what it means."""
    from dynbranch.cli.settings_command import show_settings

    show_settings(service, as_json=json)


class Service(Enum):
    """The services that can be run alone."""

    GATEWAY = "gateway"
    CONTROLLER = "controller"
    CSL = "csl"
    ENGINE_AGENT = "engine_agent"


@app.command()
@for_people
def gateway() -> None:
    """Run one gateway, as 'dynbranch settings gateway' says."""
    _run_service(Service.GATEWAY)


@app.command()
@for_people
def controller() -> None:
    """Run one controller, as 'dynbranch settings controller' says."""
    _run_service(Service.CONTROLLER)


csl_app = typer.Typer(help="Run one store, or look after the data directory of one that does not run.")
app.add_typer(csl_app, name="csl")

DataDir = Annotated[Path, typer.Argument(help="Data directory of a store that does not run.")]


@csl_app.callback(invoke_without_command=True)
@for_people
def csl(context: typer.Context) -> None:
    """Run one store. Settings: DYNBRANCH_CSL_*. Or look after the data directory of one that does not run."""
    if context.invoked_subcommand is None:
        _run_service(Service.CSL)


@csl_app.command(name="check")
@for_people
def csl_check(directory: DataDir, json: AsJson = False) -> None:
    """Look at every row of a store; exits with 1 when anything is wrong."""
    from dynbranch.cli.csl_command import check_directory

    check_directory(directory, as_json=json)


@csl_app.command(name="backup")
@for_people
def csl_backup(
    directory: DataDir,
    target: Annotated[Path, typer.Argument(help="A folder that does not exist.")],
    json: AsJson = False,
) -> None:
    """A checked copy of a store."""
    from dynbranch.cli.csl_command import back_up_directory

    back_up_directory(directory, target, as_json=json)


@csl_app.command(name="restore")
@for_people
def csl_restore(
    backup: Annotated[Path, typer.Argument(help="What 'csl backup' made.")],
    directory: Annotated[Path, typer.Argument(help="Data directory; what it holds goes to its quarantine.")],
    json: AsJson = False,
) -> None:
    """Put a backup in the place of a store."""
    from dynbranch.cli.csl_command import restore_directory

    restore_directory(backup, directory, as_json=json)


@app.command(name="engine-agent")
@for_people
def engine_agent() -> None:
    """Run one engine agent. Settings: DYNBRANCH_ENGINE_AGENT_*."""
    _run_service(Service.ENGINE_AGENT)


def _run_service(service: Service) -> None:
    import runpy

    runpy.run_module(f"dynbranch.{service.value}", run_name="__main__", alter_sys=True)


@app.command()
@for_people
def inspect(
    name: Annotated[
        str,
        typer.Argument(help="A reuse name, 64 hexadecimal digits: 'explain' tells it. Or the word 'branch'."),
    ],
    branch: Annotated[
        str,
        typer.Argument(
            help="After 'branch': its id or the beginning of it; without one the newest are listed."
        ),
    ] = "",
    workflow: Annotated[str, typer.Option(help="Of branches: those of one workflow.")] = "",
    gateway: Gateway = None,
    json: AsJson = False,
) -> None:
    """What is stored under a name, why, and why earlier results went. Or the life of a branch."""
    from dynbranch.cli.branch_command import show_branch, show_branches
    from dynbranch.cli.store_commands import show_entry

    if name != "branch":
        if branch or workflow:
            raise typer.BadParameter(f"write 'inspect branch {branch}'".strip())
        show_entry(name, gateway, as_json=json)
    elif branch:
        show_branch(branch, gateway, as_json=json)
    else:
        show_branches(workflow, gateway, as_json=json)


class Protocol(Enum):
    """What a harness speaks, as an explanation names it."""

    CHAT = "chat"
    MESSAGES = "messages"
    RESPONSES = "responses"


@app.command()
@for_people
def explain(
    file: Annotated[Path, typer.Argument(help="A request's body as JSON; - reads standard input.")],
    protocol: Annotated[
        Protocol | None, typer.Option(help="What the body is written in; else it is told by its look.")
    ] = None,
    gateway: Gateway = None,
    json: AsJson = False,
) -> None:
    """The name of a request, the classes of its fields, and whether it would hit. Executes nothing."""
    from dynbranch.cli.store_commands import show_explanation

    show_explanation(file, protocol.value if protocol else "", gateway, as_json=json)


@app.command()
@for_people
def write(
    records: Annotated[list[str], typer.Argument(help="Records that have changed: source/key, or source/*.")],
    gateway: Gateway = None,
    reporter: Annotated[str, typer.Option(help="Who says so; kept with what is invalidated.")] = "cli",
    json: AsJson = False,
) -> None:
    """Report that records have changed: every result that read them falls."""
    from dynbranch.cli.store_commands import report_write

    report_write(records, gateway, reporter, as_json=json)


@app.command()
@for_people
def stats(
    csl: Annotated[str, typer.Option(help="host:port of the store; else the gateway's.")] = "",
    controller: Annotated[str, typer.Option(help="host:port of the controller; else the gateway's.")] = "",
    gateway: Gateway = None,
    json: AsJson = False,
) -> None:
    """What the store and the controller have counted."""
    from dynbranch.cli.store_commands import show_stats

    show_stats(csl, controller, gateway, as_json=json)


@app.command()
@for_people
def traces(
    file: Annotated[
        Path | None, typer.Argument(help="OTLP JSON lines; else the newest file below ./var.")
    ] = None,
    trace: Annotated[
        str, typer.Option(help="Beginning of a trace id; else the newest that is finished.")
    ] = "",
    json: AsJson = False,
) -> None:
    """One trace as a tree."""
    from dynbranch.cli.trace_command import show_trace

    show_trace(file, trace, as_json=json)


export_app = typer.Typer(help="What a running stack has decided on, as files.")
app.add_typer(export_app, name="export", no_args_is_help=True)


@export_app.command(name="admissions")
@for_people
def export_admissions(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="JSON lines, a snapshot each.", dir_okay=False)
    ] = Path("admissions.jsonl"),
    price_curve: Annotated[
        Path | None, typer.Option(help="The controller's curve file, where it has one.", dir_okay=False)
    ] = None,
    controller: Annotated[
        str, typer.Option(help="host:port of the controller, which knows more branches than gateways list.")
    ] = "",
    gateway: Gateway = None,
) -> None:
    """What the newest branches' candidates were priced on, for 'bench admission --data FOLDER'."""
    from dynbranch.cli.export_command import export_admissions as export

    export(output, gateway, controller, price_curve)


template_app = typer.Typer(help="Templates of workflow types: check one, or have one proposed.")
app.add_typer(template_app, name="template", no_args_is_help=True)


@template_app.command(name="check")
@for_people
def template_check(
    file: Annotated[Path, typer.Argument(help="The template, as YAML.")],
    against: Annotated[
        Path | None, typer.Option(help="Recorded traffic, as JSON lines; else only the file is checked.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Say what is wrong with a template, or where it would not write what was sent; then exit with 1."""
    from dynbranch.cli.template_command import check_template

    check_template(file, against, as_json=json)


@template_app.command(name="learn")
@for_people
def template_learn(
    traffic: Annotated[Path, typer.Argument(help="Recorded traffic, as JSON lines.")],
    workflow_type: Annotated[str, typer.Option(help="Which one, where the traffic has several.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; else it is printed.", dir_okay=False)
    ] = None,
    version: Annotated[int, typer.Option(min=1, help="Its version.")] = 1,
    json: AsJson = False,
) -> None:
    """Propose a template from recorded requests, for a person to review."""
    from dynbranch.cli.template_command import learn_template

    learn_template(traffic, workflow_type, output, version, as_json=json)


if __name__ == "__main__":
    app()
