"""Coding agents as npm gives them, pointed at the gateway and otherwise unmodified. The engine plays a
script of tool calls, so that what they are to do is known."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from dynbranch.bench.harness_programs import PROGRAMS, Program
from dynbranch.bench.harness_stack import HarnessStack
from dynbranch.bench.harness_tasks import READ, TASKS, Task, done, wanted
from dynbranch.bench.harnesses import REPEATABLE, WHOLE, Did
from dynbranch.templates.traffic import read_arrivals

pytestmark = pytest.mark.timeout(2400)

WORK = [(program, task) for program in PROGRAMS for task in TASKS if program.name in task.programs]


@pytest.mark.promise("I5")
@pytest.mark.parametrize(("program", "task"), WORK, ids=lambda one: one.name)
def test_a_task_ends_as_without_the_gateway(
    program: Program, task: Task, home: Path, seen: Mapping[tuple[str, str], Did]
) -> None:
    """It is done three times in one workspace: without, with, and again. Where tools tell no times, and once
    an operator has the harness decoded greedily, the last one is answered from records."""
    if why := program.missing(home):
        pytest.skip(f"{program.name} is not here: {why}")
    one = seen[program.name, task.name]
    assert not one.trouble
    assert one.done and one.equal and one.again_equal
    # The call, and what followed from its result.
    assert one.calls >= 2
    if program in REPEATABLE and not task.apart:
        assert one.hits >= 0.9 * one.calls


@pytest.mark.promise("H.identity")
@pytest.mark.parametrize("program", WHOLE, ids=lambda one: one.name)
def test_what_it_asked_is_recorded_with_who_asked(
    program: Program, stack: HarnessStack, home: Path, seen: Mapping[tuple[str, str], Did]
) -> None:
    """By the tasks before: every call has a workflow, an agent and a turn, and agents that it started have
    their parent."""
    recorded = [one for one in read_arrivals(stack.record) if one.workflow_type.startswith(program.name)]
    if why := program.missing(home):
        pytest.skip(f"{program.name} is not here: {why}")
    assert recorded
    assert all(one.workflow_id and one.agent_id for one in recorded)
    agents = {(one.workflow_id, one.agent_id) for one in recorded}
    started = {(one.workflow_id, one.agent_id, one.parent_id) for one in recorded if one.parent_id}
    assert len(started) >= 2
    assert all((workflow, parent) in agents for workflow, _, parent in started)
    for agent in agents:
        turns = [one.turn for one in recorded if (one.workflow_id, one.agent_id) == agent]
        assert set(turns) == set(range(max(turns) + 1))


FAULTS = {
    "lost before the first token": {"kind": "cut", "after_tokens": 0},
    "lost in the middle": {"kind": "cut", "after_tokens": 2},
    "too many requests": {"kind": "status", "status": 429},
}


@pytest.mark.promise("H.faults")
@pytest.mark.parametrize("program", WHOLE, ids=lambda one: one.name)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_task_is_done_although_the_engine_fails(
    program: Program, fault: Mapping[str, object], stack: HarnessStack, home: Path, tmp_path: Path
) -> None:
    if why := program.missing(home):
        pytest.skip(f"{program.name} is not here: {why}")
    stack.tell_engine("/stub/faults", {**fault, "times": 1, "match": {"result": "moonlight"}})
    assert done(READ, program, home, tmp_path, stack.gateway) == wanted(READ)
    with urllib.request.urlopen(f"{stack.engine}/stub/faults", timeout=60) as response:
        assert json.load(response) == {"faults": []}, "it was not struck"
