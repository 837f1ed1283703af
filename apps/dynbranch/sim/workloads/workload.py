"""Workloads by name: the evaluation's four, a coding agent's commands, and recorded traces.

    workload("routing", rate=0.8, count=700, seed=1)
    workload("react", clients=1, mix="fresh")
    workload("routing", phases=paper_phases(read_numbers()))
    workload("hci", trace="azure-code", rate=0.8)
    workload("mooncake-conversation", count=500)

The same arguments give the same workflows, whatever serves them: predictions are made here, in the order of
the stream, each before its decision is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from dynbranch.domain.template import Branching
from dynbranch.records.loading import Records, load
from dynbranch.sim.fleet.workflows import Workflow, Workload, Write
from dynbranch.sim.workloads import shapes, traces
from dynbranch.sim.workloads.arrivals import (
    Arrivals,
    Begin,
    Closed,
    Phase,
    Phased,
    Poisson,
    Traced,
    begins,
    in_words,
)
from dynbranch.sim.workloads.commands import CommandsWriter
from dynbranch.sim.workloads.hci import HciWriter
from dynbranch.sim.workloads.published import Numbers, read_numbers
from dynbranch.sim.workloads.react import ReactWriter
from dynbranch.sim.workloads.routing import RoutingWriter
from dynbranch.sim.workloads.sizes import Lengths, Prefixes
from dynbranch.sim.workloads.stories import Making, Writer
from dynbranch.sim.workloads.stream import Mix, workflows
from dynbranch.sim.workloads.subagent import SubagentWriter

STREAM: Final = ""
FRESH: Final = "fresh"
TABLE_1: Final = "table 1"
MIXES: Final = (STREAM, FRESH, TABLE_1)
"""The stream's own mix; nothing that two workflows have in common; the mix of the paper's Table 1, where they
have nothing in common but what is repeated or shared on purpose."""

WRITERS: Final[Mapping[str, Callable[[Making], Writer]]] = {
    "routing": RoutingWriter,
    "react": ReactWriter,
    "subagent": SubagentWriter,
    "hci": HciWriter,
    "commands": CommandsWriter,
    **{name: partial(traces.TraceWriter, name=name) for name in traces.TRACES},
}
DECIDES: Final = {
    "routing": shapes.ROUTE,
    "react": shapes.THINK,
    "subagent": shapes.PLAN,
}
"""The stage whose decode is the window."""


class UnknownWorkload(ValueError):
    """There is no workload, mix or trace of that name. The message names those there are."""


@dataclass(frozen=True, slots=True)
class Variation:
    """What a sweep changes, against the workload's file. ``window``: what decodes of the deciding stage are
    multiplied by, which sweeps T_gen over T_exec. ``shown``: see ``Making``. ``writes``: changes a second,
    each of one record that the workload reads."""

    mix: str = STREAM
    replay: float | None = None
    overlap: float | None = None
    width: int | None = None
    gap_s: float | None = None
    window: float = 1.0
    shown: str = ""
    branching: Branching | None = None
    writes: float = 0.0
    prefixes: bool = True


def workload(
    name: str,
    *,
    rate: float | None = None,
    clients: int = 0,
    phases: Sequence[Phase] = (),
    trace: str = "",
    count: int = 0,
    seed: int = 1,
    data: Path | None = None,
    mix: str = STREAM,
    replay: float | None = None,
    overlap: float | None = None,
    width: int | None = None,
    gap_s: float | None = None,
    window: float = 1.0,
    shown: str = "",
    branching: Branching | None = None,
    writes: float = 0.0,
    prefixes: bool = True,
    tenants: int = 1,
    numbers: Numbers | None = None,
    records: Records | None = None,
) -> Workload:
    """``clients``: a closed loop. ``phases``: Poisson in phases, which have their own length. ``trace``: gaps
    as in a recorded trace, scaled to ``rate`` where that is given. Else Poisson arrivals of ``rate``, by
    default the file's under load. ``count`` 0: as the file says. ``data``: a folder of records instead of the
    package's, or ``records`` that were loaded already. ``tenants``: who have nothing in common. The rest: see
    ``Variation``.

    Raises UnknownWorkload, ValueError, OSError.
    """
    known = name.replace("sub-agent", "subagent")
    if known not in WRITERS:
        raise UnknownWorkload(f"there is no workload {name!r}; there are {', '.join(WRITERS)}")
    if mix not in MIXES:
        raise UnknownWorkload(f"there is no mix {mix!r}; there are {', '.join(map(repr, MIXES))}")
    numbers = numbers or read_numbers()
    records = load(data, _files(known, trace)) if records is None else records
    varied = Variation(mix, replay, overlap, width, gap_s, window, shown, branching, writes, prefixes)
    count = count or numbers["stream.count"]
    arrivals = _arrivals(known, records, numbers, rate, clients, tuple(phases), trace, count)
    writer = WRITERS[known](_making(known, records, numbers, seed, varied))
    shares = _mix(known, numbers, varied)
    when = begins(arrivals, seed)
    found = workflows(writer, shares, when, seed, tenants)
    title = (
        f"{known}, {in_words(arrivals)}, {len(found)} workflows, seed {seed},"
        f" replay {shares.replay:g}, overlap {shares.overlap:g}{_changed(varied)},"
        f" records of the {records.where}"
    )
    return Workload(title, writer.template, found, _writes(found, when, writes, seed), clients)


def _changed(varied: Variation) -> str:
    """What else is not as the file says."""
    plain = Variation()
    told = {"mix", "replay", "overlap"} - ({"mix"} if varied.mix else set())
    names = [field.name for field in fields(Variation) if field.name not in told]
    return "".join(
        f", {name} {getattr(varied, name)}" for name in names if getattr(varied, name) != getattr(plain, name)
    )


def _files(name: str, trace: str) -> tuple[str, ...]:
    of_name = "arrivals" if name in traces.TRACES else name
    return (of_name, "arrivals") if trace else (of_name,)


def slots(numbers: Numbers | None = None) -> int:
    """Of each engine of the evaluation's machines."""
    return int((numbers or read_numbers())["stream.slots"])


def _making(name: str, records: Records, numbers: Numbers, seed: int, varied: Variation) -> Making:
    scales = {DECIDES[name]: varied.window} if name in DECIDES else {}
    if varied.window != 1.0 and not scales:
        raise ValueError(f"no decode decides in {name}: its window can not be varied")
    return Making(
        records,
        numbers,
        Lengths(seed, numbers["stream.spread"], scales),
        seed,
        Prefixes(varied.prefixes),
        varied.shown or numbers["stream.shown"],
        varied.branching,
        varied.gap_s,
        numbers["table1.shared"] if varied.mix == TABLE_1 else 0.0,
        varied.width,
        varied.mix in (FRESH, TABLE_1),
    )


def _mix(name: str, numbers: Numbers, varied: Variation) -> Mix:
    if name in traces.TRACES or varied.mix == FRESH:
        replay, overlap = 0.0, 0.0
    elif varied.mix == TABLE_1:
        replay, overlap = numbers["table1.replay"], numbers["table1.overlap"]
    else:
        replay, overlap = numbers.of(name, "replay"), numbers.of(name, "overlap")
    return Mix(
        replay if varied.replay is None else varied.replay,
        overlap if varied.overlap is None else varied.overlap,
    )


def _arrivals(
    name: str,
    records: Records,
    numbers: Numbers,
    rate: float | None,
    clients: int,
    phases: tuple[Phase, ...],
    trace: str,
    count: int,
) -> Arrivals:
    own = name if name in traces.TRACES and rate is None else ""
    if sum((bool(clients), bool(phases), bool(trace))) > 1:
        raise ValueError("clients, phases and a trace exclude one another")
    if clients:
        return Closed(clients, count)
    if phases:
        return Phased(phases)
    if trace or own:
        of = trace or own
        times = tuple(float(record["t"]) for record in traces.requests(records, of))
        return Traced(of, times, count, rate)
    return Poisson(rate or load_rate(name, numbers), count)


def load_rate(name: str, numbers: Numbers) -> float:
    own = f"{name}.load"
    return float(numbers[own if own in numbers.found else "rates.load"])


def low_rate(name: str, numbers: Numbers) -> float:
    for path in (f"{name}.low", f"rates.low_{name}"):
        if path in numbers.found:
            return float(numbers[path])
    return float(numbers["rates.low"])


def _writes(found: Sequence[Workflow], when: Sequence[Begin], rate: float, seed: int) -> tuple[Write, ...]:
    """Of records that the stream reads, drawn evenly, while workflows begin."""
    if not rate:
        return ()
    records = sorted({record for workflow in found for record in _read(workflow)})
    if not records:
        raise ValueError("nothing of this workload is read, so that nothing can be written")
    chance, at, made = Random(f"writes {seed}"), 0.0, []
    while (at := at + chance.expovariate(rate)) < when[-1].at_s:
        made.append(Write(at, (chance.choice(records),)))
    return tuple(made)


def _read(workflow: Workflow) -> set[str]:
    return {record for turn in workflow.turns for step in turn.steps for record in step.call.reads}
