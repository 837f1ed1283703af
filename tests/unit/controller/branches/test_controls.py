"""Policies by place, budgets of engine time, and deciding without running."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.controller.core.branches.admission import Admission, PolicyName
from dynbranch.controller.core.branches.controls import Controls, DryRun, controlled
from dynbranch.controller.core.branches.lifecycle import BranchState
from dynbranch.controller.core.branches.messages import Ending, PrepareStage, Propose
from dynbranch.controller.core.branches.priced import LoadPriced, class_of
from dynbranch.controller.core.branches.records import Branch
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.domain.fills import SettlementKind
from dynbranch.domain.reuse import Identity
from unit.controller.branches.scenes import WORKFLOW, Scene, of, routed

ACME = replace(WORKFLOW, tenant="acme")


def scene_under(admission: Admission) -> Scene:
    return Scene(routed(then=("work",)), admission=admission)


def opens(scene: Scene, demand: str, identity: Identity) -> Branch:
    scene.arrive("route", demand, identity=identity)
    return scene.branch


@pytest.mark.promise("C3.controls")
def test_the_most_special_policy_that_fits_decides() -> None:
    places = {
        "routing": PolicyName.STATIC,
        "@acme": PolicyName.OFF,
        "routing@special": PolicyName.ALWAYS,
    }
    scene = scene_under(controlled(Controls(policies=places)))
    reasons = [
        opens(scene, f"r{number}", replace(WORKFLOW, tenant=tenant, workflow_type_id=kind)).decision.reason
        for number, (kind, tenant) in enumerate(
            [("routing", "t"), ("routing", "acme"), ("routing", "special"), ("other", "t"), ("other", "acme")]
        )
    ]
    assert reasons == [
        "free enough",
        "the policy is off",
        "always",
        "one of the first trials",
        "the policy is off",
    ]


@pytest.mark.promise("C3.controls")
def test_a_tenant_that_has_used_its_engine_seconds_waits_until_there_are_more() -> None:
    controls = Controls(PolicyName.ALWAYS, engine_s=None, engine_s_of={"acme": 3.0})
    scene = scene_under(controlled(controls))
    for tenant in ("acme", "t"):
        identity = replace(WORKFLOW, tenant=tenant)
        branch = opens(scene, f"first {tenant}", identity)
        scene.propose(branch, "a")
        (fill,) = branch.fills.values()
        key = scene.run(fill)
        scene.settle(fill.stages[0], fill, SettlementKind.SHADOWED)
        scene.end(key, Ending.STORED, ms=4000.0)
        waits = opens(scene, f"meanwhile {tenant}", identity)
        assert waits.decision.opens
        scene.answer(f"first {tenant}", chosen=["a"])
        scene.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=identity)
        assert branch.state is BranchState.SETTLED
        scene.propose(waits, "b")
        assert waits.candidates[0].admitted is (tenant == "t")
    assert opens(scene, "more t", WORKFLOW).decision.opens
    refused = opens(scene, "more acme", ACME).decision
    assert (refused.opens, refused.reason) == (False, "its tenant's engine seconds are spent")
    assert dict(refused.numbers) == {"budget_s": 3.0, "spent_s": pytest.approx(4.0)}
    # Three seconds an hour: a second and a little more is a third of an hour.
    scene.later(1300.0)
    assert opens(scene, "later acme", ACME).decision.opens


@pytest.mark.promise("C3.controls")
def test_a_dry_run_decides_and_records_and_runs_nothing() -> None:
    gate = Gate()
    admission = controlled(Controls(dryrun=True), gate)
    assert isinstance(admission, DryRun)
    scene = scene_under(admission)
    for number in range(3):
        scene.arrive("work", f"seen {number}")
        scene.answer(f"seen {number}")
    for number in range(40):
        scene.now += 30.0
        identity = replace(WORKFLOW, workflow_id=f"w{number}")
        if of(Propose, scene.arrive("route", f"r{number}", identity=identity)):
            scene.propose(scene.branch, "a", "b")
            assert {c.reason for c in scene.branch.candidates} == {"dry run: worth its price"}
        scene.now += 2.0
        scene.answer(f"r{number}", chosen=["a" if number < 20 else "z"])
        assert scene.branch.state is BranchState.SETTLED
    assert of(PrepareStage, scene.effects) == []
    total = admission.total
    assert total.consumed == 20 and total.fills > 40
    # Each would have hidden the ten milliseconds that its stage runs.
    assert total.saved_ms == pytest.approx(20 * 10.0)
    assert total.used_ms == pytest.approx(total.fills * 10.0)
    model = gate.classes.get(class_of(scene.branch.coordinate))
    assert gate.trials.pending == 0 and model.n > 0, "it learns from what it played in mind"
    assert all(fill.is_settled for trial in gate.trials._trials.values() for fill in trial.fills.values())


def test_what_is_not_set_is_the_policy_alone() -> None:
    assert isinstance(controlled(Controls()), LoadPriced)
    kinds = [type(controlled(Controls(name))).__name__ for name in PolicyName]
    assert kinds == ["Off", "Always", "Static", "LoadPriced"]
