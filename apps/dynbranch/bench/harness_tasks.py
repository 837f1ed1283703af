"""What coding agents are asked to do, and what came of it. The engine plays a script of tool calls
(``harnesses.jsonl``), so that what they are to do is known."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from dynbranch.bench.harness_programs import Picks, Program

FILES: Final[Mapping[str, str]] = {
    "hello.txt": "moonlight\n",
    "poem.txt": "The reed\nbends low,\nand stays.\n",
    "alpha.txt": "one fish\n",
    "beta.txt": "two fish\n",
}
"""The workspace before a task."""

ALL: Final = frozenset({"claude-code", "codex", "opencode", "qwen-code"})
WHOLE: Final = frozenset({"claude-code", "codex", "opencode"})


@dataclass(frozen=True, slots=True)
class Task:
    """``answer`` is the last word of whoever has done it; ``changed`` are files that are then another.
    ``apart``: agents of its own work at once, whose results come in either order and hold ids and times."""

    name: str
    question: str
    answer: str
    programs: frozenset[str]
    changed: Mapping[str, str]
    picks: Picks | None = None
    apart: bool = False


READ: Final = Task("read", "What does hello.txt say?", "The file says: moonlight.", ALL, {})
RUN: Final = Task(
    "run", "Run a command that counts the lines of poem.txt.", "The poem has 3 lines.", WHOLE, {}
)
EDIT: Final = Task(
    "edit",
    "Change moonlight in hello.txt to sunlight.",
    "It says sunlight now.",
    WHOLE,
    {"hello.txt": "sunlight\n"},
)
AGENTS: Final = Task(
    "agents",
    "Have two agents read alpha.txt and beta.txt at once.",
    "Both were read: one fish, two fish.",
    WHOLE,
    {},
    apart=True,
)
MENU: Final = Task(
    "menu",
    "Ask me which colour I like.",
    "You like green.",
    frozenset({"claude-code"}),
    {},
    picks={"Which colour do you like?": "Green"},
)

TASKS: Final = (READ, RUN, EDIT, AGENTS, MENU)


@dataclass(frozen=True, slots=True)
class Result:
    """What somebody sees of a task afterwards."""

    answer: str
    files: Mapping[str, str]


def script() -> str:
    return (files("dynbranch.bench") / "harnesses.jsonl").read_text(encoding="utf-8")


def wanted(task: Task) -> Result:
    return Result(task.answer, {**FILES, **task.changed})


def done(task: Task, program: Program, home: Path, folder: Path, url: str) -> Result:
    """The task, begun in a workspace as it is at first. Raises ProgramFailed."""
    workspace = folder / "ws"
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir(parents=True)
    for name, text in FILES.items():
        (workspace / name).write_text(text)
    answer = program.ask(home, folder, url, task.question, task.picks)
    return Result(answer, _files(workspace, program))


def _files(workspace: Path, program: Program) -> Mapping[str, str]:
    """What stands in the workspace, without what the program keeps there for itself."""
    found = sorted(path for path in workspace.rglob("*") if path.is_file())
    named = {str(path.relative_to(workspace)): path for path in found}
    return {
        name: path.read_text(errors="replace")
        for name, path in named.items()
        if name not in program.own_files and not name.startswith(".")
    }
