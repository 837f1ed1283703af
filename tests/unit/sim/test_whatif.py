"""Questions that can be asked of the simulator, and those that can not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.domain.template import Template
from dynbranch.enginemodel.parameters import H200_QWEN3_32B
from dynbranch.sim.arms import ARMS, UnknownArm, arm_of
from dynbranch.sim.fleet.workflows import Call, Step, Turn, Workflow, Workload
from dynbranch.sim.whatif import NoAnswer, Question, answer, at_rate, check

TEMPLATE = Template("t", 1, (), (), ())


def workload(*begins: float) -> Workload:
    workflows = (
        Workflow(number, at, "a", (Turn((Step(Call("s", f"c{number // 2}", 100, 20)),)),))
        for number, at in enumerate(begins)
    )
    return Workload("w", TEMPLATE, tuple(workflows))


def test_every_arm_answers() -> None:
    question = Question(workload(0, 1, 2, 3), H200_QWEN3_32B, 1)
    found = {name: answer(question, name) for name in ARMS}
    assert all(len(one.latencies_s) == 4 and sum(one.outcomes.values()) == 4 for one in found.values())
    assert found["floor"].outcomes == {"miss": 4}
    assert found["c1"].outcomes == found["dynbranch"].outcomes == {"miss": 2, "hit": 2}
    assert not any(one.wrong for one in found.values())


def test_a_rate_moves_beginnings_and_nothing_else() -> None:
    slow = workload(0, 1, 4, 10)
    fast = at_rate(slow, 3.0)
    assert [one.at_s for one in fast.workflows] == pytest.approx([0, 0.1, 0.4, 1.0])
    assert [one.turns for one in fast.workflows] == [one.turns for one in slow.workflows]
    for stuck in (workload(0, 0), workload(0)):
        with pytest.raises(NoAnswer, match="no rate"):
            at_rate(stuck, 1.0)


def test_what_can_not_be_answered_is_said() -> None:
    question = Question(workload(0), H200_QWEN3_32B, 1)
    small = replace(H200_QWEN3_32B, kv_pool_tokens=110)
    for wrong, says in (
        (replace(question, parameters=small), "larger than an engine's KV pool"),
        (replace(question, engines=0), "no engines"),
        (replace(question, workload=workload()), "no workflows"),
        (replace(question, workload=workload(0, 1e9)), "take 11574 days, and no more than 100"),
    ):
        with pytest.raises(NoAnswer, match=says):
            check(wrong)
    with pytest.raises(UnknownArm, match="there is no arm 'x'"):
        arm_of("x")
