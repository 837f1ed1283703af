"""A branch as people see it: one JSON object, and one line of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbranch.controller.core.branches.messages import PredictorAnswer
from dynbranch.controller.core.branches.records import Branch, CandidateRecord, Fill, StageRun
from dynbranch.domain.branches import BranchSummary
from dynbranch.domain.ids import Instant

MOST_ABREAST = 4


def summary_of(branch: Branch) -> BranchSummary:
    return BranchSummary(
        branch_id=branch.branch_id,
        workflow_type_id=branch.workflow.workflow_type_id,
        workflow_id=branch.workflow.workflow_id,
        decision_point=branch.point.name,
        state=branch.state.value,
        opened=branch.opened_at,
        candidates=len(branch.candidates),
        fills=len(branch.fills),
        consumed=branch.consumed,
    )


def view_of(branch: Branch, now: Instant) -> dict[str, Any]:
    """Times are milliseconds; those of the branch's life count from its opening."""
    fills = list(branch.fills.values())
    return {
        "branch": branch.branch_id.hex(),
        "trial": branch.trial_id.hex(),
        "tenant": branch.workflow.tenant,
        "workflow_type": branch.workflow.workflow_type_id,
        "workflow": branch.workflow.workflow_id,
        "agent": branch.agent_id,
        "decision_point": branch.point.name,
        "window": branch.point.window.value,
        "branching": branch.point.branching.value,
        "template_version": branch.template.version,
        "state": branch.state.value,
        "opened_unix_ms": branch.opened_at,
        "opened_early": branch.demand_id is None,
        "age_ms": _ms((branch.settled or now) - branch.opened),
        "gate": {
            "opens": branch.decision.opens,
            "reason": branch.decision.reason,
            **_told(branch.decision.numbers),
        },
        "prediction": {
            "spent_ms": round(branch.spent_ms, 3),
            "answers": [_answer(answer) for answer in branch.answers],
        },
        "candidates": [_candidate(one) for one in branch.candidates],
        "resolution": _resolution(branch),
        "fills": [_fill(fill) for fill in fills],
        "engine_time": {
            "used_ms": round(sum(fill.used_ms for fill in fills), 3),
            "saved_ms": round(sum(fill.saved_ms for fill in fills), 3),
            "discarded_ms": round(sum(fill.discarded_ms for fill in fills), 3),
        },
        "abort_confirmed_ms": [round(ms, 3) for ms in branch.abort_ms],
    }


def _resolution(branch: Branch) -> dict[str, Any] | None:
    if branch.resolved is None:
        return None
    return {
        "selections": None if branch.selections is None else list(branch.selections),
        "by": branch.resolved_by,
        "after_ms": _ms(branch.resolved - branch.opened),
    }


def _answer(answer: PredictorAnswer) -> dict[str, Any]:
    return {
        "predictor": answer.predictor,
        "answer": answer.how,
        "spent_ms": round(answer.spent_ms, 3),
        "ranking": list(answer.ranking),
    }


def _candidate(one: CandidateRecord) -> dict[str, Any]:
    return {
        "selection": one.selection,
        "rank": one.rank + 1,
        "admitted": one.admitted,
        "reason": one.reason,
        "seen_in_decode": one.seen,
        "spoken_of": one.spoken,
        "selected": one.selected,
        **_told([(name, value) for name, value in one.numbers if name != "rank"]),
    }


def _told(numbers: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Many of them are a table of their own."""
    rounded = {name: round(value, 4) for name, value in numbers}
    return {"price": rounded} if len(rounded) > MOST_ABREAST else dict(rounded)


def _fill(fill: Fill) -> dict[str, Any]:
    return {
        "fill": fill.fill_id.hex(),
        "selection": fill.selection,
        "chain": list(fill.chain),
        "lost": fill.lost,
        "consumed": fill.consumed,
        "used_ms": round(fill.used_ms, 3),
        "saved_ms": round(fill.saved_ms, 3),
        "discarded_ms": round(fill.discarded_ms, 3),
        "stages": [_stage(stage) for stage in fill.stages],
    }


def _stage(stage: StageRun) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "state": stage.state.value,
        "engine": stage.engine,
        "name": stage.name.hex() if stage.name is not None else "",
        "once": stage.once,
        "used_ms": round(stage.used_ms, 3),
        "saved_ms": round(stage.saved_ms, 3),
        "reason": stage.reason,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
