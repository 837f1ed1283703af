"""Whole tasks of real coding agents, with DynBranch and without, and again in the same workspace.

Each program does each of its tasks three times in one home and one workspace: pointed at the engine, which
speaks its protocol itself; then at the gateway before that engine; and there once more. A task is equal where
the last word and every file are the same as without DynBranch. Nothing here depends on the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

from dynbranch.bench.harness_programs import (
    CLAUDE_CODE,
    CODEX,
    OPENCODE,
    Program,
    ProgramFailed,
    installed,
)
from dynbranch.bench.harness_stack import HarnessStack, harness_stack
from dynbranch.bench.harness_tasks import TASKS, Result, Task, done, wanted
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.demo.measures import Figure, exact, share

WHOLE: Final = (CLAUDE_CODE, CODEX, OPENCODE)
"""Who does whole tasks."""

REPEATABLE: Final = (CLAUDE_CODE, OPENCODE)
"""Whose tools tell no times."""


@dataclass(frozen=True, slots=True)
class Did:
    """One task of one program. ``calls`` and ``hits`` are the second run's, at the gateway."""

    program: str
    task: str
    apart: bool
    done: bool
    equal: bool
    again_equal: bool
    calls: int
    hits: int
    trouble: str = ""


def measure(tell: Tell) -> Measured:
    home = installed()
    programs = [program for program in WHOLE if not program.missing(home)]
    if home is None or not programs:
        raise BenchFailed("there are no harnesses here: make test-harnesses installs them (npm, 1 GB)")
    with TemporaryDirectory(prefix="dynbranch-harnesses-") as name:
        folder = Path(name)
        tell("starting an engine and the stack", 0, 0)
        with harness_stack(folder) as stack:
            seen = all_did(stack, programs, home, folder, tell)
    failures = tuple(f"{one.program}, {one.task}: {one.trouble}" for one in seen if one.trouble)
    raw = {"versions": versions(home, programs), "tasks": [asdict(one) for one in seen]}
    return Measured(figures(seen), raw, failures, table=_table(seen), table_title="Tasks")


def all_did(
    stack: HarnessStack, programs: Sequence[Program], home: Path, folder: Path, tell: Tell
) -> list[Did]:
    """Every task of every program, in the order of both. Programs work beside one another: what is counted of
    them is told apart by their protocols, and two of one protocol take turns."""
    work = {program: [task for task in TASKS if program.name in task.programs] for program in programs}
    turns: dict[str, list[Program]] = {}
    for program in programs:
        turns.setdefault(program.protocol, []).append(program)
    count, told = sum(map(len, work.values())), Lock()
    seen: dict[tuple[str, str], Did] = {}

    def one_after_another(mine: Sequence[Program]) -> None:
        for program in mine:
            for task in work[program]:
                one = did(stack, program, task, home, folder / program.name)
                with told:
                    seen[program.name, task.name] = one
                    tell(f"{program.name}: {task.name}", len(seen), count)

    with ThreadPoolExecutor(len(turns), thread_name_prefix="harness") as pool:
        for ended in [pool.submit(one_after_another, mine) for mine in turns.values()]:
            ended.result()
    return [seen[program.name, task.name] for program in programs for task in work[program]]


def did(stack: HarnessStack, program: Program, task: Task, home: Path, folder: Path) -> Did:
    """``folder`` has the program's home and the workspace; ``home`` is where npm has put the programs."""
    try:
        alone = done(task, program, home, folder, stack.engine)
        first = done(task, program, home, folder, stack.gateway)
        calls, hits = stack.answered(program.protocol), stack.answered(program.protocol, "hit")
        again = done(task, program, home, folder, stack.gateway)
    except (ProgramFailed, OSError) as failure:
        return Did(program.name, task.name, task.apart, False, False, False, 0, 0, str(failure))
    calls, hits = stack.answered(program.protocol) - calls, stack.answered(program.protocol, "hit") - hits
    trouble = _difference(wanted(task), alone) or _difference(alone, first) or _difference(alone, again)
    return Did(
        program.name,
        task.name,
        task.apart,
        done=alone == wanted(task),
        equal=first == alone,
        again_equal=again == alone,
        calls=calls,
        hits=hits,
        trouble=trouble,
    )


def _difference(one: Result, other: Result) -> str:
    if one == other:
        return ""
    if one.answer != other.answer:
        return f"{other.answer!r} is not {one.answer!r}"
    names = sorted(one.files.keys() | other.files.keys())
    return f"other files: {[name for name in names if one.files.get(name) != other.files.get(name)]}"


def figures(seen: Sequence[Did]) -> dict[str, Figure]:
    """``second_run_hit_share`` is the lower of the two programs whose tools tell no times, over their tasks
    without agents of their own; Codex's stands beside it."""
    programs = sorted({one.program for one in seen if one.done})
    equal = [one.done and one.equal and one.again_equal for one in seen]
    found = {
        "tasks_equal_share": share(sum(equal), len(equal)),
        "tasks": exact(len(seen), 1),
        "real_programs": exact(len(programs), 1),
    }
    shares = {name: hit_share([one for one in seen if one.program == name]) for name in programs}
    for name, hits in shares.items():
        found[f"second_run_hit_share_{name.replace('-', '_')}"] = hits
    repeatable = [shares[program.name] for program in REPEATABLE if program.name in shares]
    found["second_run_hit_share"] = min(repeatable, key=lambda one: one.value, default=exact(0.0, 0))
    return found


def hit_share(seen: Sequence[Did]) -> Figure:
    counted = [one for one in seen if not one.apart]
    return share(sum(one.hits for one in counted), sum(one.calls for one in counted))


def versions(home: Path, programs: Sequence[Program]) -> Mapping[str, Any]:
    found = {}
    for program in programs:
        described = json.loads((home / "node_modules" / program.package / "package.json").read_text())
        found[program.package] = described["version"]
    return found


def _table(seen: Sequence[Did]) -> tuple[tuple[str, ...], ...]:
    rows = [("program", "task", "as without", "second run: hits of calls")]
    rows += [
        (
            one.program,
            one.task,
            "yes" if one.equal and one.again_equal else "no",
            f"{one.hits} of {one.calls}",
        )
        for one in seen
    ]
    return tuple(rows)
