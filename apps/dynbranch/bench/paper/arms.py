"""One run: the arm by its name, before the workload that a run names."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from dynbranch.bench.paper.runs import Seen, Size, Spec
from dynbranch.enginemodel.parameters import BatchParameters, preset
from dynbranch.sim.arms import arm_of
from dynbranch.sim.fleet.runs import Outcome, Played, performed
from dynbranch.sim.fleet.workflows import Decision, Step, Workflow, Workload
from dynbranch.sim.workloads.arrivals import Phase, paper_phases, phase_of
from dynbranch.sim.workloads.published import read_numbers
from dynbranch.sim.workloads.workload import slots, workload


def run(spec: Spec, size: Size) -> Seen:
    """In a process of its own. Raises UnknownArm, UnknownWorkload, UnknownPreset."""
    phases = paper_phases(read_numbers()) if spec.phased else ()
    asked = asked_of(spec, phases, size.data)
    if spec.drafter is not None:
        asked = redrafted(asked, spec.drafter, spec.seed)
    outcome, serving = performed(
        asked, arm_of(spec.arm, width=spec.width), parameters_of(spec), spec.engines, spec.seed
    )
    serving.validate_state()
    unseen = 0 if phases or spec.mix == "table 1" else size.serial_unseen if spec.clients else size.unseen
    return seen_of(outcome, asked, phases, min(unseen, len(asked.workflows) // 2))


def asked_of(spec: Spec, phases: Sequence[Phase], data: Path | None) -> Workload:
    return workload(
        spec.workload,
        rate=spec.rate,
        clients=spec.clients,
        phases=phases,
        count=spec.count,
        seed=spec.seed,
        data=data,
        mix=spec.mix,
        replay=spec.replay,
        width=spec.width,
    )


def redrafted(asked: Workload, drafter: tuple[float, float, float], seed: int) -> Workload:
    """The same workflows with rankings of another predictor, which is right as often as it is said to be."""
    chance = Random(f"drafter {seed}")

    def turned(step: Step) -> Step:
        if step.decision is None:
            return step
        return replace(step, decision=_ranked_anew(step.decision, drafter, chance))

    return replace(
        asked,
        workflows=tuple(
            replace(
                workflow,
                turns=tuple(replace(turn, steps=tuple(map(turned, turn.steps))) for turn in workflow.turns),
            )
            for workflow in asked.workflows
        ),
    )


def _ranked_anew(decision: Decision, drafter: tuple[float, float, float], chance: Random) -> Decision:
    first, three, spent_s = drafter
    others = [one for one in decision.ranked if one not in decision.picked]
    drawn = chance.random()
    if decision.picked and drawn < three:
        rank = 0 if drawn < first else 1 + (drawn > (first + three) / 2)
        others.insert(min(rank, len(others)), decision.picked[0])
    return replace(decision, ranked=tuple(others[:3]), spent_s=spent_s)


def parameters_of(spec: Spec) -> BatchParameters:
    found = preset(spec.machine)
    assert isinstance(found, BatchParameters)
    slow = spec.slowness
    return replace(
        found,
        slots=slots(),
        decode_step_ms=found.decode_step_ms * slow,
        batched_extra_ms=found.batched_extra_ms * slow,
        prefill_tokens_per_s=found.prefill_tokens_per_s / slow,
    )


def seen_of(outcome: Outcome, asked: Workload, phases: Sequence[Phase], unseen: int) -> Seen:
    pairs = list(zip(asked.workflows, outcome.plays, strict=True))[unseen:]
    accounts = [play.account for _, play in pairs]
    turns = [
        (latency_s, kind_of(workflow), phase_of(phases, play.began_s) if phases else "")
        for workflow, play in pairs
        for latency_s in play.turns_s
    ]
    latencies, kinds, began = zip(*turns, strict=True)
    outcomes = Counter(one for _, play in pairs for one in play.outcomes)
    busy = [one.utilisation for one in outcome.slices]
    return Seen(
        latencies,
        kinds,
        began,
        workflows=len(pairs),
        wrong=sum(play.wrong for _, play in pairs),
        calls=sum(outcomes.values()),
        ended_s=outcome.ended_s,
        outcomes=dict(sorted(outcomes.items())),
        fills=sum(one.fills for one in accounts),
        consumed=sum(one.consumed for one in accounts),
        consumed_s=sum(one.used_s - one.discarded_s for one in accounts),
        discarded_s=sum(one.discarded_s for one in accounts),
        predictions=sum(one.predictions for one in accounts),
        opened=sum(one.opened for one in accounts),
        refused=sum(one.refused for one in accounts),
        utilisation=statistics.fmean(busy) if busy else 0.0,
        by_phase={one.name: _of_phase(outcome, pairs, phases, one.name) for one in phases},
    )


def kind_of(workflow: Workflow) -> str:
    if workflow.repeats is not None:
        return "repeat"
    return "fresh" if workflow.shares is None else "partial"


def _of_phase(
    outcome: Outcome, pairs: Sequence[tuple[Workflow, Played]], phases: Sequence[Phase], name: str
) -> dict[str, float]:
    """What was decided in one phase, and how full the engines were."""
    accounts = [play.account for _, play in pairs if phase_of(phases, play.began_s) == name]
    opened = sum(one.opened for one in accounts)
    refused = sum(one.refused for one in accounts)
    thresholds = [one.threshold for one in outcome.prices if phase_of(phases, one.at_s) == name]
    busy = [one.utilisation for one in outcome.slices if phase_of(phases, one.at_s) == name]
    return {
        "branches": opened + 0.0,
        "opened_share": round(1 - refused / opened, 4) if opened else 0.0,
        "fills": sum(one.fills for one in accounts),
        "threshold_median": round(statistics.median(thresholds), 4) if thresholds else 0.0,
        "utilisation": round(statistics.fmean(busy), 4) if busy else 0.0,
    }
