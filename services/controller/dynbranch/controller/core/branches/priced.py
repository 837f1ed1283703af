"""The policy that prices: the port of branches in front of the gates of load-priced admission."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from dynbranch.controller.core.branches.admission import (
    Asked,
    Decision,
    LoadView,
    Offered,
    Verdict,
)
from dynbranch.controller.core.branches.experience import (
    BranchOver,
    EngineLoad,
    EngineLost,
    Experience,
    FillDemanded,
    FillOver,
    LoadSeen,
    SelectionTold,
    SetupSpent,
    StageExecuted,
    StageSized,
    TimeWent,
)
from dynbranch.controller.core.predictors.port import Coordinate
from dynbranch.controller.core.pricing.estimates import SEEN, SPOKEN
from dynbranch.controller.core.pricing.gate import FillEnd, Gate, Offer, Opening
from dynbranch.controller.core.pricing.load import Reading
from dynbranch.controller.core.pricing.ordering import Priced
from dynbranch.controller.core.pricing.returns import ClassKey
from dynbranch.domain.ids import Instant

HOUR_MS = 3_600_000.0

Numbers = tuple[tuple[str, float], ...]


class LoadPriced:
    """``width`` bounds the guesses of a branch, beside their prices."""

    def __init__(self, gate: Gate, *, width: int) -> None:
        self.gate = gate
        self._width = width

    # -- the two questions ---------------------------------------------------------------------------------

    def open(self, asked: Asked, load: LoadView) -> Decision:
        models = [engine for engine in load.engines if engine.serves_models]
        opening = self.gate.open(
            asked.branch_id,
            asked.trial_id,
            class_of(asked.coordinate),
            _readings(models or load.engines, load.unplaced),
            asked.now,
        )
        return Decision(opening.opens, opening.reason, _opening_numbers(opening))

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        models = tuple(engine.address for engine in load.engines if engine.serves_models)
        tools = tuple(engine.address for engine in load.engines if not engine.serves_models)
        offers = [
            Offer(
                one.selection,
                SEEN if one.seen else SPOKEN if one.spoken else one.rank,
                one.fill_id,
                asked.coordinate.workflow_type_id,
                one.chain,
                tools if one.only_tools else models,
            )
            for one in offered
        ]
        decided = self.gate.admit(
            asked.branch_id,
            asked.trial_id,
            class_of(asked.coordinate),
            offers,
            _readings(load.engines, load.unplaced),
            elapsed_ms=(asked.now - asked.opened) * 1000,
            room=max(0, self._width - asked.admitted),
            now=asked.now,
        )
        return tuple(
            Verdict(one.selection, one.admitted, one.reason, _numbers(one), one.engine) for one in decided
        )

    # -- learning ------------------------------------------------------------------------------------------

    def hear(self, news: Experience, now: Instant) -> None:
        match news:
            case LoadSeen(load):
                self.gate.see(_reading(load, 0), now)
            case EngineLost(address):
                self.gate.lose(address)
            case StageExecuted(workflow_type_id, stage, execution_ms):
                self.gate.estimates.executed(workflow_type_id, stage, _sane(execution_ms))
            case StageSized(workflow_type_id, stage, tokens):
                self.gate.estimates.sized(workflow_type_id, stage, tokens)
            case TimeWent():
                self.gate.pass_time(now)
            case _:
                self._hear_of_branch(news, now)

    def _hear_of_branch(
        self, news: SetupSpent | SelectionTold | BranchOver | FillDemanded | FillOver, now: Instant
    ) -> None:
        match news:
            case SetupSpent(trial_id, spent_ms):
                self.gate.charge_setup(trial_id, _sane(spent_ms))
            case SelectionTold(coordinate, chosen_by_rank, spoken):
                pairs = [(SEEN if rank is None else rank, chosen) for rank, chosen in chosen_by_rank]
                pairs += [(SPOKEN, chosen) for chosen in spoken]
                self.gate.select(class_of(coordinate), pairs)
            case BranchOver(trial_id, _, window_ms, recorded):
                if recorded:
                    self.gate.void(trial_id)
                else:
                    self.gate.resolve(trial_id, now, window_ms=window_ms)
            case FillDemanded(trial_id, fill_id, stage, saved_ms):
                self.gate.consume(trial_id, fill_id, stage, _sane(saved_ms))
            case FillOver():
                self.gate.end_fill(_end(news))
            case _:
                assert_never(news)

    def validate_state(self) -> None:
        self.gate.validate_state()


def class_of(coordinate: Coordinate) -> ClassKey:
    """A tenant's class learns alone; what it begins with its parents know, who are all tenants'."""
    return (coordinate.workflow_type_id, coordinate.decision_point, coordinate.tenant)


def _readings(engines: Sequence[EngineLoad], unplaced: int) -> list[Reading]:
    """What is on its way to an engine, and to nobody knows which, is taken to be spread over all."""
    count = len(engines)
    return [
        _reading(engine, unplaced // count + (number < unplaced % count))
        for number, engine in enumerate(engines)
    ]


def _reading(engine: EngineLoad, coming: int) -> Reading:
    return Reading(
        engine=engine.address,
        slots=engine.slots,
        canonical=engine.canonical,
        waiting=engine.waiting,
        fills=max(engine.fills, engine.reserved) + coming,
        fill_slots=engine.fill_slots,
        kv_tokens=engine.kv_tokens,
        kv_budget=engine.kv_budget,
    )


def _end(over: FillOver) -> FillEnd:
    stages = tuple(
        replace(
            one,
            used_ms=_sane(one.used_ms),
            wait_ms=None if one.wait_ms is None else _sane(one.wait_ms),
        )
        for one in over.stages
    )
    return FillEnd(
        over.trial_id,
        over.fill_id,
        over.coordinate.workflow_type_id,
        stages,
        over.selected,
        over.consumed,
        _sane(over.saved_ms),
        over.ran,
    )


def _sane(ms: float) -> float:
    """What others measured is believed up to an hour: one number that is none would spoil all that follow."""
    return min(HOUR_MS, max(0.0, ms)) if math.isfinite(ms) else 0.0


def _opening_numbers(opening: Opening) -> Numbers:
    _, rho_h, falling, consumption, backlog, o_kv = opening.x
    return (
        ("expected_ms", opening.score.mean),
        ("upper_ms", opening.score.upper),
        ("trials", float(opening.n)),
        ("pending", float(opening.pending)),
        # Pressure and backlog are halved in the context.
        ("rho_h", 2 * rho_h),
        ("falling", 2 * falling),
        ("consumption", consumption),
        ("backlog", 2 * backlog),
        ("o_kv", o_kv),
    )


def _numbers(one: Priced) -> Numbers:
    numbers: Numbers = (
        ("probability", one.probability),
        ("gain_ms", one.gain_ms),
        ("cost_ms", one.cost_ms),
        ("threshold", one.threshold),
        ("utility_ms", one.utility_ms),
    )
    view, footprint = one.view, one.footprint
    if view is None or footprint is None:
        return numbers
    # With these it can be decided again, elsewhere.
    return (
        *numbers,
        ("rho_h", view.rho_h),
        ("rho", view.rho),
        ("o_fill", view.o_fill),
        ("o_kv", view.o_kv),
        ("backlog", view.backlog),
        ("slots", float(view.slots)),
        ("fill_slots", float(view.fill_slots)),
        ("slot_s", footprint.slot_s),
        ("kv_share", footprint.kv_share),
        ("kv_share_s", footprint.kv_share_s),
    )
