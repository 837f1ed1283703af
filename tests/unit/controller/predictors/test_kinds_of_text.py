from __future__ import annotations

import pytest
from dynbranch.controller.core.predictors.port import TextKind, text_kind
from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Origin,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)

STAGES = (Stage("plan", StageKind.CHAT, ""), Stage("search", StageKind.TOOL, ""))


def point(window: Window, stage: str) -> DecisionPoint:
    resolved_by = Where(Origin.OUTPUT, stage)
    return DecisionPoint("p", stage, resolved_by, window, Branching.EXCLUSIVE, (), Candidates(()), ())


@pytest.mark.parametrize(
    ("where", "window", "stage", "kind"),
    [
        (Where(Origin.INPUT, "question"), Window.DECODE, "plan", TextKind.ASKED),
        (Where(Origin.REQUEST, "plan"), Window.DECODE, "plan", TextKind.READ),
        (Where(Origin.OUTPUT, "search"), Window.DECODE, "plan", TextKind.READ),
        (Where(Origin.OUTPUT, "plan"), Window.DECODE, "plan", TextKind.STEP),
        (Where(Origin.OUTPUT, "plan"), Window.WAIT, "plan", TextKind.OUTPUT),
        (Where(Origin.OUTPUT, "plan"), Window.WAIT, "search", TextKind.STEP),
    ],
)
def test_what_a_text_is_to_a_predictor(where: Where, window: Window, stage: str, kind: TextKind) -> None:
    made = point(window, stage)
    assert text_kind(where, made, Template("t", 1, (), STAGES, (made,))) is kind
