"""The templates of the simulated workflow types: which stages there are, where they decide, what follows.

Nothing is rendered here: requests are contents and lengths. What a book of branches goes by is as in the
demonstration's own templates.
"""

from __future__ import annotations

from typing import Final

from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Moment,
    MomentKind,
    Origin,
    PredictorUse,
    Speculable,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)

ROUTE: Final = "route"
HANDLE: Final = "handle"
EXECUTE: Final = "execute"
AGGREGATE: Final = "aggregate"
HANDLER: Final = "handler"

THINK: Final = "think"
READ: Final = "read"
ENTITY: Final = "entity"

PLAN: Final = "plan"
SEARCH: Final = "search"
REPORT: Final = "report"
SYNTHESISE: Final = "synthesise"
TOPIC: Final = "topic"

OFFER: Final = "offer"
ACT: Final = "act"
TELL: Final = "tell"
PICK: Final = "pick"

STEP: Final = "step"


def routing(branching: Branching) -> Template:
    point = _decoded(
        HANDLER, ROUTE, (Moment(MomentKind.ARRIVAL, ROUTE),), "context", (HANDLE, EXECUTE), branching
    )
    stages = (_stage(ROUTE), _ahead(HANDLE), _ahead(EXECUTE), _stage(AGGREGATE, repeats=False))
    return Template("routing", 1, (), stages, (point,), "simulated routing")


def react(branching: Branching) -> Template:
    """The first name stands in the question; the next ones in the passage, which is there before it is
    read."""
    opens = (Moment(MomentKind.ARRIVAL, THINK), Moment(MomentKind.ARRIVAL, READ))
    point = _decoded(ENTITY, THINK, opens, "context", (READ,), branching)
    return Template("react", 1, (), (_stage(THINK), _ahead(READ)), (point,), "simulated react")


def subagent(branching: Branching) -> Template:
    point = _decoded(TOPIC, PLAN, (Moment(MomentKind.ARRIVAL, PLAN),), "draft", (SEARCH, REPORT), branching)
    stages = (_stage(PLAN), _ahead(SEARCH), _ahead(REPORT), _stage(SYNTHESISE, repeats=False))
    return Template("subagent", 1, (), stages, (point,), "simulated subagent")


def hci(branching: Branching) -> Template:
    """The pick shows in the request that follows it."""
    point = DecisionPoint(
        name=PICK,
        stage=OFFER,
        resolved_by=Where(Origin.REQUEST, ACT),
        window=Window.WAIT,
        branching=branching,
        opens=(Moment(MomentKind.OUTPUT, OFFER),),
        candidates=Candidates((PredictorUse("offer"),), at_most=3),
        then=(ACT,),
    )
    return Template("hci", 1, (), (_stage(OFFER), _ahead(ACT), _stage(TELL)), (point,), "simulated hci")


def plain(name: str) -> Template:
    """Nothing in it can run ahead."""
    return Template(name, 1, (), (_stage(STEP),), (), f"simulated {name}")


def _decoded(
    name: str,
    stage: str,
    opens: tuple[Moment, ...],
    predictor: str,
    then: tuple[str, ...],
    branching: Branching,
) -> DecisionPoint:
    return DecisionPoint(
        name=name,
        stage=stage,
        resolved_by=Where(Origin.OUTPUT, stage),
        window=Window.DECODE,
        branching=branching,
        opens=opens,
        candidates=Candidates((PredictorUse(predictor),), at_most=3),
        then=then,
    )


def _stage(name: str, *, repeats: bool = True) -> Stage:
    return Stage(name, StageKind.CHAT, request=name, repeats=repeats)


def _ahead(name: str) -> Stage:
    return Stage(name, StageKind.CHAT, request=name, repeats=True, speculable=Speculable.YES)
