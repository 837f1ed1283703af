"""Coding agents as npm gives them, pointed at the gateway and otherwise unmodified. The engine plays a
script of tool calls, so that what they are to do is known."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest
from harnesses.conftest import Stack
from harnesses.programs import CLAUDE_CODE, OPENCODE, PROGRAMS, QWEN_CODE, Program

pytestmark = pytest.mark.timeout(600)

QUESTION = "What does hello.txt say?"
ANSWER = "The file says: moonlight."

each = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)


def here(program: Program) -> Program:
    if why := program.missing():
        pytest.skip(f"{program.name} is not here: {why}")
    return program


def served(stack: Stack, protocol: str, outcome: str = "[a-z]+") -> float:
    """Requests of a protocol that were answered."""
    with urllib.request.urlopen(f"{stack.gateway}/metrics", timeout=20) as response:
        lines = response.read().decode().splitlines()
    kind = re.compile(
        rf'dynbranch_gateway_requests_total{{failed="false",kind="{protocol}",outcome="{outcome}"}} (\S+)'
    )
    return sum(float(found[1]) for line in lines if (found := kind.fullmatch(line)))


@each
def test_a_program_reads_a_file_and_answers(program: Program, stack: Stack, workspace: Path) -> None:
    before = served(stack, here(program).protocol)
    assert program.ask(workspace, stack.gateway, QUESTION) == ANSWER
    # The call, and what followed from its result.
    assert served(stack, program.protocol) >= before + 2


@pytest.mark.promise("I5")
@pytest.mark.parametrize("program", [OPENCODE, QWEN_CODE], ids=lambda program: program.name)
def test_it_answers_as_without_the_gateway(program: Program, stack: Stack, workspace: Path) -> None:
    """Of those whose protocol the engine speaks itself."""
    answers = [here(program).ask(workspace, url, QUESTION) for url in (stack.engine, stack.gateway)]
    assert answers[0] == answers[1] == ANSWER


@pytest.mark.parametrize("program", [CLAUDE_CODE, OPENCODE], ids=lambda program: program.name)
def test_a_second_run_of_a_task_is_reused(program: Program, stack: Stack, workspace: Path) -> None:
    """Of harnesses whose tools tell no times, once an operator has them decoded greedily."""
    here(program).ask(workspace, stack.gateway, QUESTION)
    asked, hits = served(stack, program.protocol), served(stack, program.protocol, "hit")
    assert program.ask(workspace, stack.gateway, QUESTION) == ANSWER
    asked, hits = served(stack, program.protocol) - asked, served(stack, program.protocol, "hit") - hits
    assert asked >= 2 and hits >= 0.9 * asked
