"""Decisions in recorded traffic: what was selected, what the history would have said, and what would follow.

The shipped predictor ``history`` runs through the traffic in its order and sees no decision before it has
fallen. Others read texts, which a recording may not hold; so what is foretold here is rather too little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from dynbranch.controller.core.predictors.history import History
from dynbranch.controller.core.predictors.port import Coordinate, Question, Resolution
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import DecisionPoint, Moment, MomentKind, Origin, StageKind, Template
from dynbranch.sim.fleet.workflows import Call, Decision
from dynbranch.templates.traffic import Exchange

Place = tuple[int, int]
"""A sequence of requests, and the request in it whose output decides, or is followed by a person's pick."""

Decided = Mapping[Place, Decision]


@dataclass(frozen=True, slots=True)
class _Made:
    """One decision. ``at_ms``: when its branch could open; ``known_ms``: when it had fallen. ``first``: the
    request from which on what was selected runs."""

    place: Place
    point: DecisionPoint
    picked: tuple[str, ...]
    at_ms: float
    known_ms: float
    first: int


def without_tools(template: Template) -> Template:
    """A template of the stages that run on engines: the time of a tool is a pause before the stage that
    follows it. A decision that nothing but tools follows is none."""
    chats = tuple(stage for stage in template.stages if stage.kind is StageKind.CHAT)
    names = {stage.name for stage in chats}
    points = (_without_tools(point, names) for point in template.decision_points)
    return replace(template, stages=chats, decision_points=tuple(point for point in points if point.then))


def _without_tools(point: DecisionPoint, chats: set[str]) -> DecisionPoint:
    then = tuple(name for name in point.then if name in chats)
    # A tool's output is there when the request that is written from it comes.
    opens = (
        one if one.stage in chats else Moment(MomentKind.ARRIVAL, name)
        for one in point.opens
        for name in then[:1]
    )
    return replace(point, then=then, opens=tuple(dict.fromkeys(opens)))


def decided(
    lanes: Sequence[Sequence[Exchange]], calls: Sequence[Sequence[Call]], template: Template
) -> Decided:
    """``template`` is without its tools."""
    made = sorted(_all_made(lanes, template), key=lambda one: one.at_ms)
    history = History()
    pending: list[tuple[float, int, Resolution]] = []
    trails: dict[int, list[str]] = {}
    seen: dict[str, dict[str, tuple[Call, ...]]] = {}
    found: dict[Place, Decision] = {}
    for number, one in enumerate(made):
        lane = one.place[0]
        while pending and pending[0][0] <= one.at_ms:
            _learn_next(history, pending)
        trail = trails.setdefault(lane, [])
        question = Question(
            Coordinate(lanes[lane][0].tenant or "default", template.workflow_type, one.point.name),
            trail=tuple(trail),
            at_most=one.point.candidates.at_most,
        )
        proposed = history.propose(question, Instant(one.at_ms / 1000))
        follows = _chains(one, calls[lane])
        known = seen.setdefault(one.point.name, {})
        wrong = {
            selection: _instead(known.get(selection) or last, f"{lane} {one.place[1]} {selection}")
            for selection in proposed
            if selection not in one.picked and (last := next(reversed(known.values()), ()))
        }
        chains = {**wrong, **follows}
        ranked = tuple(selection for selection in proposed if chains.get(selection))
        found[one.place] = Decision(one.point.name, one.picked, ranked, chains)
        heappush(pending, (one.known_ms, number, Resolution(question, one.picked)))
        trail += one.picked
        for selection, chain in follows.items():
            if chain:
                known.pop(selection, None)
                known[selection] = chain
    return found


def _learn_next(history: History, pending: list[tuple[float, int, Resolution]]) -> None:
    at_ms, _, resolution = heappop(pending)
    history.learn(resolution, Instant(at_ms / 1000))


def _all_made(lanes: Sequence[Sequence[Exchange]], template: Template) -> Iterator[_Made]:
    points = {point.name: point for point in template.decision_points}
    for lane, exchanges in enumerate(lanes):
        taken: set[int] = set()
        for number, one in enumerate(exchanges):
            for selection in one.selections:
                point = points.get(selection.decision_point)
                if point is None or selection.ambiguous:
                    continue
                is_picked = point.resolved_by.origin is Origin.REQUEST
                place = number - 1 if is_picked else number
                if place < 0 or place in taken:
                    continue
                taken.add(place)
                done_ms = exchanges[place].done_ms
                done_ms = exchanges[place].at_ms if done_ms is None else done_ms
                at_ms, known_ms = (done_ms, one.at_ms) if is_picked else (one.at_ms, done_ms)
                yield _Made((lane, place), point, selection.chosen, at_ms, known_ms, place + 1)


def _chains(made: _Made, calls: Sequence[Call]) -> dict[str, tuple[Call, ...]]:
    """For each selection, in their order, the requests that the template says follow it."""
    at, chains = made.first, {}
    for selection in made.picked:
        chain: list[Call] = []
        for name in made.point.then:
            if at >= len(calls) or calls[at].stage != name:
                break
            chain.append(calls[at])
            at += 1
        chains[selection] = tuple(chain)
    return chains


def _instead(chain: Sequence[Call], what: str) -> tuple[Call, ...]:
    """As long as what followed this selection last, and equal to nothing that was asked."""
    return tuple(
        replace(call, content=f"not asked: {what} {number}", blocks=()) for number, call in enumerate(chain)
    )
