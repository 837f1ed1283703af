"""What the benchmark of coding agents makes of what they did."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.bench.harness_tasks import FILES, TASKS, script, wanted
from dynbranch.bench.harnesses import Did, figures
from dynbranch.stub_engine.script import rules_from

READ = Did("claude-code", "read", apart=False, done=True, equal=True, again_equal=True, calls=4, hits=4)
OPENCODE = replace(READ, program="opencode", hits=3)
CODEX = replace(READ, program="codex", hits=1)


def test_the_share_of_hits_is_that_of_the_worse_program_whose_tools_tell_no_times() -> None:
    agents = replace(READ, task="agents", apart=True, calls=10, hits=0)
    found = figures([READ, agents, OPENCODE, CODEX])
    assert found["second_run_hit_share"].value == 0.75
    assert found["second_run_hit_share_codex"].value == 0.25
    assert found["second_run_hit_share_claude_code"].n == 4
    assert (found["tasks_equal_share"].value, found["real_programs"].value) == (1.0, 3)


def test_a_task_that_was_not_done_is_not_equal() -> None:
    found = figures([READ, replace(CODEX, done=False)])
    assert found["tasks_equal_share"].value == 0.5
    assert found["real_programs"].value == 1


def test_a_second_run_that_ends_otherwise_is_not_equal() -> None:
    assert figures([replace(READ, again_equal=False)])["tasks_equal_share"].value == 0.0


def test_the_script_can_be_read_and_says_every_answer() -> None:
    replies = [rule.reply.text for rule in rules_from(script(), "the script")]
    assert all(task.answer in replies for task in TASKS)


def test_tasks_are_about_files_that_are_there() -> None:
    for task in TASKS:
        assert task.changed.keys() <= FILES.keys()
        assert wanted(task).files.keys() == FILES.keys()
