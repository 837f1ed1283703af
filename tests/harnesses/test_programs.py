"""Coding agents as npm gives them, pointed at the gateway and otherwise unmodified. The engine plays a
script of tool calls, so that what they are to do is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.bench.harness_programs import PROGRAMS, Program
from dynbranch.bench.harness_stack import HarnessStack
from dynbranch.bench.harness_tasks import TASKS, Task
from dynbranch.bench.harnesses import REPEATABLE, did

pytestmark = pytest.mark.timeout(1200)

WORK = [(program, task) for program in PROGRAMS for task in TASKS if program.name in task.programs]


@pytest.mark.promise("I5")
@pytest.mark.parametrize(("program", "task"), WORK, ids=lambda one: one.name)
def test_a_task_ends_as_without_the_gateway(
    program: Program, task: Task, stack: HarnessStack, home: Path, folders: Path
) -> None:
    """It is done three times in one workspace: without, with, and again. Where tools tell no times, and once
    an operator has the harness decoded greedily, the last one is answered from records."""
    if why := program.missing(home):
        pytest.skip(f"{program.name} is not here: {why}")
    seen = did(stack, program, task, home, folders / program.name)
    assert not seen.trouble
    assert seen.done and seen.equal and seen.again_equal
    # The call, and what followed from its result.
    assert seen.calls >= 2
    if program in REPEATABLE and not task.apart:
        assert seen.hits >= 0.9 * seen.calls
