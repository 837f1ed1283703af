"""Branches under the policy that prices: what it hears of them, and what follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.controller.core.branches.lifecycle import BranchState
from dynbranch.controller.core.branches.messages import Ending, EngineGone, EngineSeen, Propose
from dynbranch.controller.core.branches.priced import LoadPriced, class_of
from dynbranch.controller.core.branches.records import Branch
from dynbranch.controller.core.pricing.estimates import SEEN, SPOKEN, PricingClass
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.domain.fills import SettlementKind
from dynbranch.domain.reuse import Hit
from dynbranch.domain.template import Branching
from prometheus_client import generate_latest
from unit.controller.branches.scenes import WORKFLOW, Scene, of, picked, routed
from unit.controller.branches.world import WHO, world

MENU = replace(WORKFLOW, workflow_type_id="menus")


class Played:
    """Many branches of one coordinate, one after another, each played to its end."""

    def __init__(self, *, busy: int = 2, seed: int = 0) -> None:
        self.gate = Gate(seed=seed)
        self.scene = Scene(routed(then=("work",)), admission=LoadPriced(self.gate, width=3))
        self.busy = busy
        self.number = 0
        self.opened: list[bool] = []
        self.look()

    def look(self) -> None:
        self.scene.do(EngineSeen("e1", 8, self.busy, 0, fill_slots=8))

    def branch(self, *ranked: str, chosen: str) -> Branch:
        scene = self.scene
        self.number += 1
        scene.now += 20.0
        self.look()
        demand, identity = f"r{self.number}", replace(WORKFLOW, workflow_id=f"w{self.number}")
        asked = of(Propose, scene.arrive("route", demand, identity=identity))
        branch = scene.branch
        self.opened.append(bool(asked))
        if asked:
            scene.propose(branch, *ranked)
            scene.run_ahead(branch, took_s=0.3)
        scene.now += 1.0
        scene.decide(branch, demand, chosen, identity)
        assert branch.state is BranchState.SETTLED
        assert self.gate.trials.pending == 0
        return branch


@pytest.mark.promise("C3.closes")
@pytest.mark.parametrize("busy", [0, 2, 6])
def test_a_predictor_that_is_never_right_soon_opens_only_audits(busy: int) -> None:
    played = Played(busy=busy)
    for _ in range(50):
        played.branch("a", "b", chosen="z")
    branches = [played.branch("a", "b", chosen="z") for _ in range(60)]
    reasons = {branch.decision.reason for branch in branches}
    assert reasons <= {"not worth its cost", "audit"} and "not worth its cost" in reasons
    assert sum(played.opened[50:]) < 12


@pytest.mark.promise("C3.closes")
def test_a_predictor_that_is_right_goes_on_being_asked_at_low_load() -> None:
    played = Played()
    branches = [played.branch("a", "b", chosen="a") for _ in range(60)]
    assert all(played.opened)
    assert all(branch.fills["a"].consumed for branch in branches)


def test_each_number_of_a_decision_is_told() -> None:
    played = Played()
    for _ in range(12):
        branch = played.branch("a", "b", chosen="a")
    assert dict(branch.decision.numbers).keys() >= {"expected_ms", "upper_ms", "trials", "pending", "rho_h"}
    (first, *_) = branch.candidates
    numbers = dict(first.numbers)
    assert first.admitted and first.reason == "worth its price"
    assert numbers["probability"] > numbers["threshold"] and numbers["utility_ms"] > 0
    assert numbers["gain_ms"] > 0 and numbers["cost_ms"] > 0 and numbers["rho_h"] == 0.25
    assert {"rho", "o_fill", "o_kv"} <= numbers.keys()


def test_what_became_of_branches_is_learned_once() -> None:
    played = Played()
    branch = played.branch("a", "b", chosen="a")
    key = class_of(branch.coordinate)
    assert key == ("routing", "way", "t")
    trial = played.gate.trials.get(branch.trial_id)
    assert trial is not None and trial.setup_ms == 2.0
    won, lost = trial.fills[branch.fills["a"].fill_id], trial.fills[branch.fills["b"].fill_id]
    assert (won.saved, won.cost_ms) == ({0: 900.0}, 0.0)
    assert lost.used is not None and lost.used[0].slot_s == pytest.approx(0.9)
    assert trial.return_ms == pytest.approx(900.0 - 2.0 - lost.cost_ms)
    known = played.gate.estimates
    assert [(known.ranks[key, rank].yes, known.ranks[key, rank].no) for rank in (0, 1)] == [(1, 0), (0, 1)]
    kind = PricingClass(key, False)
    assert (known.classes[kind].use.yes, known.classes[kind].use.no) == (1, 0)
    assert known.classes[kind].gain.total == 900.0
    assert list(known.windows[key]) == [pytest.approx(1600.0)]
    fill = branch.fills["a"]
    before = trial.return_ms
    played.scene.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=WORKFLOW, ms=900.0)
    assert trial.return_ms == before


def test_a_recorded_decision_is_no_trial() -> None:
    played = Played()
    played.scene.arrive("route", "hit")
    assert played.gate.trials.pending == 1
    played.scene.answer("hit", chosen=["a"], outcome="hit")
    key = class_of(played.scene.branch.coordinate)
    model = played.gate.classes.get(key)
    assert (model.n, model.pending) == (0, 0) and key not in played.gate.estimates.windows


def test_what_shows_in_the_decode_is_priced_as_nearly_certain() -> None:
    played = Played()
    scene = played.scene
    scene.arrive("route", "r")
    scene.propose(scene.branch, "a", "b", "c", "d")
    assert scene.branch.candidates[3].reason == "no more fills for one branch"
    scene.choice("r", "e")
    seen = scene.branch.known("e")
    assert seen is not None and seen.admitted and not seen.predicted
    first = scene.branch.known("a")
    assert first is not None
    assert dict(seen.numbers)["probability"] > dict(first.numbers)["probability"]


def test_what_is_spoken_of_is_priced_as_such_and_learned_from() -> None:
    played = Played()
    scene, known = played.scene, played.gate.estimates
    scene.arrive("route", "r")
    branch = scene.branch
    key = class_of(branch.coordinate)
    scene.propose(branch, "a", "b", "c", "d")
    assert not branch.candidates[3].admitted
    scene.choice("r", "d", spoken=True)
    scene.choice("r", "e", spoken=True)
    spoken = branch.known("d")
    assert spoken is not None and spoken.admitted, "a refused guess is offered again, beside the others"
    numbers = dict(spoken.numbers)
    assert numbers["probability"] == pytest.approx(known.selection(key, SPOKEN) * 0.8)
    assert known.selection(key, SPOKEN) < known.selection(key, SEEN)
    scene.choice("r", "e")
    scene.answer("r", chosen=["e"])
    assert (known.ranks[key, SPOKEN].yes, known.ranks[key, SPOKEN].no) == (1, pytest.approx(1, abs=0.01))
    assert known.ranks[key, SEEN].yes == 1


def test_a_busy_engine_refuses_what_a_free_one_takes() -> None:
    played = Played(seed=1)
    for number in range(30):
        played.branch("a", "b", chosen="a" if number % 3 == 0 else "z")
    played.busy = 2
    free = played.branch("a", "b", chosen="z")
    played.busy = 16
    full = played.branch("a", "b", chosen="z")
    assert len(free.fills) > len(full.fills) == 0


def test_a_seen_engine_counts_what_is_on_its_way_to_it() -> None:
    scene = Scene(routed(then=("work",)), admission=LoadPriced(Gate(), width=3), slots=2)
    scene.arrive("route", "r1")
    scene.propose(scene.branch, "a", "b", "c")
    assert [one.admitted for one in scene.branch.candidates] == [True, True, False]
    assert scene.branch.candidates[2].reason == "no engine has room for one more fill"
    scene.arrive("route", "r2")
    scene.propose(scene.branch, "a")
    assert scene.branch.candidates[0].reason == "no engine has room for one more fill"
    scene.do(EngineGone("e1"))
    scene.arrive("route", "r3")
    scene.propose(scene.branch, "a")
    assert scene.branch.candidates[0].reason == "no engine can run it"


def test_an_adopted_fill_that_ends_late_is_charged_for_it() -> None:
    played = Played()
    scene = played.scene
    # Harnesses wait 100 ms for it, where it is executed for them.
    for number in range(3):
        scene.arrive("work", f"d{number}")
        scene.answer(f"d{number}")
    scene.arrive("route", "r")
    scene.propose(scene.branch, "a")
    branch = scene.branch
    fill = branch.fills["a"]
    key = scene.run(fill)
    scene.now += 0.4
    scene.settle(fill.stages[0], fill, SettlementKind.ADOPTED, by=WORKFLOW, ms=0.0)
    scene.now += 2.0
    scene.settle(fill.stages[0], fill, SettlementKind.CONFIRMED, ms=2400.0)
    scene.end(key, Ending.STORED, ms=2400.0)
    trial = played.gate.trials.get(branch.trial_id)
    assert trial is not None
    account = trial.fills[fill.fill_id]
    assert account.saved == {0: pytest.approx(400.0)}
    assert account.late == {0: pytest.approx(2000.0 - 10.0)}


def test_what_another_workflow_takes_from_an_offer_is_credited_to_its_branch() -> None:
    gate = Gate()
    scene = Scene(picked(branching=Branching.INDEPENDENT), admission=LoadPriced(gate, width=3))
    scene.arrive("offer", "o1", identity=MENU)
    scene.answer("o1")
    branch = scene.branch
    scene.propose(branch, "x", "y")
    fill = branch.fills["y"]
    key = scene.run(fill)
    scene.settle(fill.stages[0], fill, SettlementKind.SHADOWED)
    scene.end(key, Ending.STORED)
    scene.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=replace(MENU, workflow_id="w9"), ms=70.0)
    trial = gate.trials.get(branch.trial_id)
    assert trial is not None and trial.fills[fill.fill_id].saved == {0: 70.0}
    assert trial.entered is None, "the branch is still open"


async def test_beside_the_store_and_the_agent_it_learns_what_was_saved(tmp_path: Path) -> None:
    gate = Gate()
    async with world(tmp_path, admission=LoadPriced(gate, width=3)) as there:
        for number in range(3):
            who = replace(WHO, workflow_id=f"w{number}")
            there.arrive(f"r{number}", f"left {number}", f"right {number}", who=who)
            await there.until(
                lambda: (
                    [fill for fill in there.view["fills"] if fill["stages"][-1]["state"] == "shadow"]
                    and all(s[-1] == "shadow" and len(s) == 2 for s in there.states().values())
                )
            )
            there.answer(f"r{number}", f"left {number}")
            for content in (f"Go left {number}", f"Sum up: done: Go left {number}"):
                assert isinstance(await there.demand(content, who=who), Hit)
            view = await there.settled()
            assert view["gate"]["opens"] and view["gate"]["reason"] == "one of the first trials"
        assert [(c["admitted"], c["reason"]) for c in view["candidates"]] == [(True, "worth its price")] * 2
        assert all(
            {"probability", "threshold", "utility_ms"} <= c["price"].keys() for c in view["candidates"]
        )
        assert {"expected_ms", "trials"} <= view["gate"]["price"].keys()
        (kind,) = gate.estimates.classes
        known = gate.estimates.classes[kind]
        assert kind.multi_stage and known.gain.weight > 2.5 and known.use.yes > 2.5
        assert (gate.trials.pending, len(gate.trials)) == (0, 3)
        text = generate_latest(there.registry).decode()
        place = 'decision_point="way",workflow_type="ways"'
        assert f"dynbranch_admission_probability_count{{{place}}} 6.0" in text
        for number in ("utility_ms", "gain_ms", "cost_ms", "threshold", "rho_h", "o_fill", "o_kv"):
            assert f"dynbranch_admission_{number}_count{{{place}}} 6.0" in text
        await there.empty()


@pytest.mark.parametrize("ms", [float("nan"), float("inf"), -5.0, 1e300])
def test_a_number_that_is_none_spoils_nothing(ms: float) -> None:
    played = Played()
    scene = played.scene
    scene.arrive("route", "r")
    branch = scene.branch
    scene.propose(branch, "a", "b")
    a, b = branch.fills.values()
    for fill in (a, b):
        scene.end(scene.run(fill), Ending.STORED, ms=ms)
        scene.settle(fill.stages[0], fill, SettlementKind.SHADOWED, ms=ms)
    scene.answer("r", chosen=["a"])
    scene.settle(a.stages[0], a, SettlementKind.PROMOTED, by=WORKFLOW, ms=ms)
    scene.settle(b.stages[0], b, SettlementKind.DISCARDED, ms=ms)
    assert branch.state is BranchState.SETTLED
    played.gate.validate_state()
    assert played.branch("a", chosen="a").decision.opens
