"""One run: values in, values out."""

from __future__ import annotations

import pickle

from dynbranch.enginemodel.parameters import H200_QWEN3_32B
from dynbranch.sim.fleet.playing import floor
from dynbranch.sim.fleet.runs import run
from dynbranch.sim.fleet.serving import ALWAYS, ARMS, DYNBRANCH
from unit.sim.fleet.tiny import call, choice, step, workflow, workload

CHAINS = {one: (call("act", f"act {one}", 200),) for one in "ab"}
DECIDE = step(call("decide", "decide", 300), choice("a", ("b", "a"), CHAINS))
LOAD = workload(*(workflow(n, DECIDE, step(CHAINS["a"][0]), at_s=10.0 * n, tenant=f"{n}") for n in range(60)))


def test_an_outcome_goes_to_other_processes_and_back() -> None:
    outcome = run(LOAD, ALWAYS, H200_QWEN3_32B, seed=3)
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert all(pickle.loads(pickle.dumps(arm)) == arm for arm in (*ARMS, floor))


def test_a_seed_replays() -> None:
    assert run(LOAD, DYNBRANCH, H200_QWEN3_32B, seed=3) == run(LOAD, DYNBRANCH, H200_QWEN3_32B, seed=3)


def test_it_tells_of_every_workflow_what_it_took_and_spent() -> None:
    told: list[int] = []
    outcome = run(LOAD, ALWAYS, H200_QWEN3_32B, 2, told=told.append)
    assert told == [50]
    assert [play.number for play in outcome.plays] == list(range(60))
    assert outcome.requests == 120 and outcome.wrong == 0
    account = outcome.account
    assert (account.opened, account.predictions, account.fills, account.consumed) == (60, 60, 120, 60)
    assert 0 < account.discarded_s < account.used_s
    busy = sum(outcome.slot_s.values()) / outcome.ended_s
    running = sum(one.running for one in outcome.slices) / len(outcome.slices)
    assert abs(running - busy) < 0.2 * busy
    assert all(0 <= one.utilisation <= 1 and 0 <= one.kv_share <= 1 for one in outcome.slices)
