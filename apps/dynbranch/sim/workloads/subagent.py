"""Sub-agents: MuSiQue's questions by their parts. A lead plans which part is next, a sub-agent searches and
reports; at last the reports are put together.

A report depends on its sub-question alone, as it reads once answers before it are put in: whatever question
it belongs to, it is the same. What can be asked next is read from the plan: the parts whose own questions are
answered. Before there is a plan, a draft model guesses the first, as often right as the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dynbranch.records.loading import Record
from dynbranch.sim.fleet.workflows import Step, Turn
from dynbranch.sim.workloads import shapes
from dynbranch.sim.workloads.stories import Calls, Decks, Lending, Making, Part, Showing, Story, decided


@dataclass(frozen=True, slots=True)
class _Sub:
    """``needs``: the places of the parts whose answers stand in it."""

    text: str
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    id: str
    subs: tuple[_Sub, ...]


class SubagentWriter:
    def __init__(self, making: Making) -> None:
        self.making, numbers = making, making.numbers
        self.template = shapes.subagent(making.branching_of("subagent"))
        by_depth: dict[int, list[_Asked]] = {}
        for record in making.records.subagents:
            by_depth.setdefault(len(record["subs"]), []).append(_asked(record))
        depths = [(depth, weight) for depth, weight in numbers["subagent.depths"]]
        self._decks = Decks(by_depth, depths, f"subagent {making.seed}")
        self._firsts = [asked.subs[0].text for found in by_depth.values() for asked in found]
        self._width = making.width or numbers.of("subagent", "width")
        self._first_ranks: Sequence[float] = numbers["subagent.first_ranks"]
        self._first_spent_s = numbers["subagent.first_spent_s"]
        self._spent_s = numbers["subagent.spent_s"]
        self._retrieval_s = numbers.of("subagent", "retrieval_s")
        self._drafter = Random(f"drafter {making.seed}")
        self._showing = Showing.of(making, "subagent")
        self._lending = Lending(making.shared, Random(f"lent {making.seed}"))
        stages = (shapes.PLAN, shapes.SEARCH, shapes.REPORT, shapes.SYNTHESISE)
        self._calls = Calls(making, "subagent", stages)

    def write(self, number: int, lent: Story | None = None) -> Story:
        time, asked = self._decks.draw()
        world = self.making.world(number, time)
        borrowed = self._lending.parts(lent, len(asked.subs))
        steps: list[Step] = []
        parts: list[Part] = []
        said = self._calls.first_prompt(shapes.PLAN, f"{world}/{asked.id}")
        reports = 0
        for place, sub in enumerate(asked.subs):
            names = self._drafted(asked) if not place else _ready(asked, place)
            ranked = list(dict.fromkeys(names))[: self._width]
            content = f"plan {self.making.own(number)} {place}"
            plan = self._calls.turn(shapes.PLAN, content, number, said)
            shown_at = self._showing.at(plan.output_tokens)
            others = [other.text for other in asked.subs[place:]]
            spoken = self._showing.spoken(plan.output_tokens, sub.text, others)
            wanted = dict.fromkeys((*ranked, sub.text, *(name for _, name in spoken)))
            chains = {name: self._chain(world, name) for name in wanted}
            if place in borrowed:
                chains[sub.text] = borrowed[place]
            part = chains[sub.text]
            spent_s = self._spent_s if place else self._first_spent_s
            decision = decided(shapes.TOPIC, sub.text, ranked, chains, spent_s, shown_at, spoken)
            steps += [Step(plan, decision), *map(Step, part)]
            parts.append(part)
            said += plan.output_tokens + part[-1].output_tokens
            reports += part[-1].output_tokens
        content = f"synthesise {self.making.own(number)}"
        steps.append(Step(self._calls.call(shapes.SYNTHESISE, content, read=reports)))
        return Story((Turn(tuple(steps)),), tuple(parts))

    def again(self, number: int, story: Story) -> Story:
        return story

    def _drafted(self, asked: _Asked) -> list[str]:
        """Guesses at the first part: the right one at a rank drawn by how often it is there, others from
        elsewhere."""
        drawn = self._drafter.random()
        others = self._drafter.choices(self._firsts, k=len(self._first_ranks))
        wrong = [text for text in others if text != asked.subs[0].text]
        for rank, share in enumerate(self._first_ranks):
            if drawn < share:
                return [*wrong[:rank], asked.subs[0].text, *wrong[rank:]]
            drawn -= share
        return wrong

    def _chain(self, world: str, text: str) -> Part:
        return (
            self._calls.call(shapes.SEARCH, f"search {world}/{text}"),
            self._calls.call(shapes.REPORT, f"report {world}/{text}", before_s=self._retrieval_s),
        )


def _asked(record: Record) -> _Asked:
    """Where a record does not say what a part needs, it needs the one before."""
    subs = tuple(
        _Sub(sub["sub"], tuple(sub.get("ref", (place - 1,) if place else ())))
        for place, sub in enumerate(record["subs"])
    )
    return _Asked(record["id"], subs)


def _ready(asked: _Asked, done: int) -> list[str]:
    """Parts that are not done, and whose needs are; in the plan's order."""
    return [sub.text for sub in asked.subs[done:] if all(need < done for need in sub.needs)]
