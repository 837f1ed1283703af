"""Routing: BFCL's ``parallel_multiple`` requests. A router chooses one of the request's functions, a handler
writes the call, an executor plays it; once or twice; then the results are put together."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dynbranch.controller.core.predictors.context import ContextRanker
from dynbranch.controller.core.predictors.port import Question, Resolution
from dynbranch.domain.ids import Instant
from dynbranch.records.decisions import routing
from dynbranch.records.loading import Record
from dynbranch.sim.fleet.workflows import Step, Turn
from dynbranch.sim.workloads import shapes
from dynbranch.sim.workloads.stories import Calls, Deck, Lending, Making, Part, Showing, Story, decided

_NOW = Instant(0.0)
"""The built-in predictors go by order, not by time."""


@dataclass(slots=True)
class _Asked:
    """One decision of a record. ``ranked`` is None until it first comes."""

    question: Question
    picked: str
    ranked: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    """``made``: for each call of the request its function and what tells its arguments from others."""

    id: str
    made: tuple[tuple[str, str], ...]
    asked: tuple[_Asked, ...]


class RoutingWriter:
    def __init__(self, making: Making) -> None:
        self.making, numbers = making, making.numbers
        self._predictor = ContextRanker()
        self.template = shapes.routing(making.branching_of("routing"))
        self._deck = Deck(list(_requests(making)), f"routing {making.seed}")
        self._depths, self._weights = zip(*numbers["routing.depths"], strict=True)
        self._depth = Random(f"depths routing {making.seed}")
        self._width = making.width or numbers.of("routing", "width")
        self._spent_s = numbers["routing.spent_s"]
        self._showing = Showing.of(making, "routing")
        self._lending = Lending(making.shared, Random(f"lent {making.seed}"))
        stages = (shapes.ROUTE, shapes.HANDLE, shapes.EXECUTE, shapes.AGGREGATE)
        self._calls = Calls(making, "routing", stages)

    def write(self, number: int, lent: Story | None = None) -> Story:
        time, request = self._deck.draw()
        world = self.making.world(number, time)
        (depth,) = self._depth.choices(self._depths, self._weights)
        asked = request.asked[:depth]
        borrowed = self._lending.parts(lent, len(asked))
        steps: list[Step] = []
        parts: list[Part] = []
        used: dict[str, int] = {}
        said = self._calls.first_prompt(shapes.ROUTE, f"{world}/{request.id}")
        results = 0
        for place, one in enumerate(asked):
            ranked = self._ranked(one)
            content = f"route {self.making.own(number)} {place}"
            route = self._calls.turn(shapes.ROUTE, content, number, said)
            offered = [candidate.selection for candidate in one.question.candidates or ()]
            shown_at = self._showing.at(route.output_tokens)
            spoken = self._showing.spoken(route.output_tokens, one.picked, offered)
            chains = {
                name: self._chain(world, request, name, used.get(name, 0))
                for name in dict.fromkeys((*ranked, one.picked, *(name for _, name in spoken)))
            }
            if place in borrowed:
                chains[one.picked] = borrowed[place]
            decision = decided(shapes.HANDLER, one.picked, ranked, chains, self._spent_s, shown_at, spoken)
            part = chains[one.picked]
            steps += [Step(route, decision), *map(Step, part)]
            parts.append(part)
            used[one.picked] = used.get(one.picked, 0) + 1
            said += route.output_tokens + part[-1].output_tokens
            results += part[-1].output_tokens
        content = f"aggregate {self.making.own(number)}"
        steps.append(Step(self._calls.call(shapes.AGGREGATE, content, read=results)))
        return Story((Turn(tuple(steps)),), tuple(parts))

    def again(self, number: int, story: Story) -> Story:
        return story

    def _ranked(self, one: _Asked) -> tuple[str, ...]:
        """A record that comes again is foretold as it was: to this predictor nothing has changed."""
        if one.ranked is None:
            one.ranked = self._predictor.propose(one.question, _NOW)[: self._width]
            self._predictor.learn(Resolution(one.question, (one.picked,)), _NOW)
        return one.ranked

    def _chain(self, world: str, request: _Request, name: str, before: int) -> Part:
        """The handler sees the request; the executor a call only, which other requests may make, too.
        ``before``: how often the function was called already, each time with other arguments."""
        calls = [told for function, told in request.made if function == name]
        told = calls[before] if before < len(calls) else f"{request.id} {before}"
        written = f"{world}/{request.id} {name} {before}"
        return (
            self._calls.call(shapes.HANDLE, f"handle {written}"),
            self._calls.call(shapes.EXECUTE, f"execute {world}/{name} {told}"),
        )


def _requests(making: Making) -> list[_Request]:
    by_record: dict[str, list[_Asked]] = {}
    for decision in routing(making.records):
        by_record.setdefault(decision.record, []).append(_Asked(decision.question, decision.selection))
    return [_request(record, by_record[record["id"]]) for record in making.records.routing if record["steps"]]


def _request(record: Record, asked: list[_Asked]) -> _Request:
    # Without its arguments a call is this request's own.
    made = tuple(
        (step["h"], str(step.get("d") or f"{record['id']} {place}"))
        for place, step in enumerate(record["steps"])
    )
    return _Request(record["id"], made, tuple(asked))
