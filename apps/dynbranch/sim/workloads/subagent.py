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
from dynbranch.sim.fleet.workflows import Call, Step, Turn
from dynbranch.sim.workloads import shapes
from dynbranch.sim.workloads.stories import Decks, Lending, Making, Part, Showing, Story, decided


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
        self._tokens = {stage: numbers.tokens(f"subagent.{stage}") for stage in stages}
        self._begin = {
            stage: making.prefixes.shared(place, self._tokens[stage].system)
            for place, stage in enumerate(stages)
        }

    def write(self, number: int, lent: Story | None = None) -> Story:
        time, asked = self._decks.draw()
        world = self.making.world(number, time)
        borrowed = self._lending.parts(lent, len(asked.subs))
        steps: list[Step] = []
        parts: list[Part] = []
        said = self._first_prompt(shapes.PLAN, f"{world}/{asked.id}")
        reports = 0
        for place, sub in enumerate(asked.subs):
            names = self._drafted(asked) if not place else _ready(asked, place)
            ranked = list(dict.fromkeys(names))[: self._width]
            plan = self._plan(number, place, said)
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
        prompt_tokens = self._first_prompt(shapes.SYNTHESISE, content) + reports
        begin = self._begin[shapes.SYNTHESISE]
        output_tokens = self._output(shapes.SYNTHESISE, content)
        steps.append(Step(Call(shapes.SYNTHESISE, content, prompt_tokens, output_tokens, begin)))
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
            self._call(shapes.SEARCH, f"search {world}/{text}", 0.0),
            self._call(shapes.REPORT, f"report {world}/{text}", self._retrieval_s),
        )

    def _call(self, stage: str, content: str, before_s: float) -> Call:
        return Call(
            stage,
            content,
            self._first_prompt(stage, content),
            self._output(stage, content),
            self._begin[stage],
            before_s=before_s,
        )

    def _plan(self, number: int, place: int, said: int) -> Call:
        content = f"plan {self.making.own(number)} {place}"
        output_tokens = self._output(shapes.PLAN, content)
        begin = self._begin[shapes.PLAN]
        blocks = self.making.prefixes.conversation(begin, number, said, output_tokens)
        return Call(shapes.PLAN, content, said, output_tokens, blocks)

    def _first_prompt(self, stage: str, content: str) -> int:
        tokens = self._tokens[stage]
        return tokens.system + self.making.lengths.prompt(tokens.prompt, content)

    def _output(self, stage: str, content: str) -> int:
        return self.making.lengths.output(stage, self._tokens[stage].output, content)


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
