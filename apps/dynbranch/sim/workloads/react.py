"""ReAct: MuSiQue's questions. Think of a name, look it up, read the passage; hop after hop; then answer.

A passage's reading depends on the passage alone: another name that leads there, or another question, needs
the same. Its prompt holds no thought, so that it can be written before the thought is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from dynbranch.controller.core.predictors.context import ContextRanker
from dynbranch.controller.core.predictors.port import Coordinate, Question, Resolution, Text, TextKind
from dynbranch.domain.ids import Instant
from dynbranch.records.decisions import TENANT, loosely, strictly
from dynbranch.records.loading import Record
from dynbranch.sim.fleet.workflows import Call, Decision, Step, Turn
from dynbranch.sim.workloads import shapes
from dynbranch.sim.workloads.stories import Decks, Lending, Making, Part, Showing, Story, decided
from dynbranch.wording.words import holds, name_words

_NOW = Instant(0.0)
_AT = Coordinate(TENANT, "musique", "next_name")
_CHARACTERS_PER_TOKEN = 4.4
_PROPOSED = 8
_OTHERS = ("one", "another", "a third")
"""A passage holds more names than were proposed, and thoughts speak of those, too."""


@dataclass(slots=True)
class _Hop:
    """``name`` is what is looked up. ``ranked``: names that were proposed for it, and whether each leads to
    the same passage; None until it first comes."""

    question: Question
    passage: str
    passage_tokens: int
    name: str
    ranked: list[tuple[str, bool]] | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """``last``: what would be looked up after the last passage, where nothing is any more."""

    id: str
    hops: tuple[_Hop, ...]
    last: _Hop


class ReactWriter:
    def __init__(self, making: Making) -> None:
        self.making, numbers = making, making.numbers
        self._predictor = ContextRanker()
        self.template = shapes.react(making.branching_of("react"))
        by_depth: dict[int, list[_Asked]] = {}
        for record in making.records.questions:
            if record["src"] == "musique":
                by_depth.setdefault(len(record["hops"]), []).append(_asked(record, making.records.passages))
        depths = [(depth, weight) for depth, weight in numbers["react.depths"]]
        self._decks = Decks(by_depth, depths, f"react {making.seed}")
        self._width = making.width or numbers.of("react", "width")
        self._spent_s = numbers["react.spent_s"]
        self._retrieval_s = numbers.of("react", "retrieval_s")
        self._showing = Showing.of(making, "react")
        self._lending = Lending(making.shared, Random(f"lent {making.seed}"))
        self._think, self._read = numbers.tokens("react.think"), numbers.tokens("react.read")
        self._answer_output = numbers["react.answer.output_tokens"]
        self._think_begin = making.prefixes.shared(0, self._think.system)
        self._read_begin = making.prefixes.shared(1, self._read.system)

    def write(self, number: int, lent: Story | None = None) -> Story:
        time, asked = self._decks.draw()
        world = self.making.world(number, time)
        borrowed = self._lending.parts(lent, len(asked.hops))
        steps: list[Step] = []
        parts: list[Part] = []
        said = self._think.system + self.making.lengths.prompt(self._think.prompt, f"{world}/{asked.id}")
        for place, hop in enumerate(asked.hops):
            part = borrowed.get(place, (self._reading(world, hop),))
            output_tokens = self._output(f"think {self.making.own(number)} {place}", self._think.output)
            decision = self._decision(world, hop, part, output_tokens)
            thought = self._thought(number, place, said, output_tokens)
            steps += [Step(thought, decision), *map(Step, part)]
            parts.append(part)
            said += thought.output_tokens + part[-1].output_tokens
        output_tokens = self._output(
            f"think {self.making.own(number)} {len(asked.hops)}", self._answer_output
        )
        answer = self._thought(number, len(asked.hops), said, output_tokens)
        steps.append(Step(answer, self._decision(world, asked.last, (), output_tokens)))
        return Story((Turn(tuple(steps)),), tuple(parts))

    def again(self, number: int, story: Story) -> Story:
        return story

    def _decision(self, world: str, hop: _Hop, part: Part, output_tokens: int) -> Decision:
        """A thought that looks nothing up speaks of names as others do."""
        proposed = self._ranked(hop)
        ranked = proposed[: self._width]
        chains = {name: part if right else (self._wrong(world, name),) for name, right in ranked}
        if hop.name:
            chains[hop.name] = part
        names = [name for name, _ in ranked]
        others = [name for name, right in proposed if not right] + [
            f"{name} of {hop.passage}" for name in _OTHERS
        ]
        shown_at = self._showing.at(output_tokens) if hop.name else None
        spoken = self._showing.spoken(output_tokens, hop.name, others)
        for _, name in spoken:
            if name not in chains:
                chains[name] = (self._wrong(world, name),)
        return decided(shapes.ENTITY, hop.name, names, chains, self._spent_s, shown_at, spoken)

    def _ranked(self, hop: _Hop) -> list[tuple[str, bool]]:
        """A question that comes again is foretold as it was, and teaches nothing."""
        if hop.ranked is None:
            names = self._predictor.propose(hop.question, _NOW)
            told: dict[str, bool] = {}
            for name in names:
                if any(strictly(name, picked) for picked in hop.question.picked):
                    continue
                # The thought spells a name as the passage does.
                same = hop.name if hop.name and strictly(name, hop.name) else name
                told.setdefault(same, bool(hop.name) and _leads_to(name, hop.name))
            hop.ranked = list(told.items())
            self._predictor.learn(Resolution(hop.question, (hop.name,) if hop.name else ()), _NOW)
        return hop.ranked

    def _reading(self, world: str, hop: _Hop) -> Call:
        record = f"passages/{hop.passage}"
        return self._looked_up(f"read {world}/{hop.passage}", hop.passage_tokens, (record,))

    def _wrong(self, world: str, name: str) -> Call:
        """Of what the name leads to nothing is known but that it is another passage."""
        content = f"read {world}/of {' '.join(name_words(name))}"
        return self._looked_up(content, self.making.lengths.prompt(self._read.prompt, content), ())

    def _looked_up(self, content: str, passage_tokens: int, reads: tuple[str, ...]) -> Call:
        return Call(
            shapes.READ,
            content,
            self._read.system + passage_tokens,
            self.making.lengths.output(shapes.READ, self._read.output, content),
            self._read_begin,
            reads,
            self._retrieval_s,
        )

    def _thought(self, number: int, place: int, said: int, output_tokens: int) -> Call:
        blocks = self.making.prefixes.conversation(self._think_begin, number, said, output_tokens)
        return Call(shapes.THINK, f"think {self.making.own(number)} {place}", said, output_tokens, blocks)

    def _output(self, content: str, median: float) -> int:
        return self.making.lengths.output(shapes.THINK, median, content)


def _leads_to(name: str, wanted: str) -> bool:
    """One name holds the other, and is at most twice as long; or a title says more than the name."""
    return loosely(name, wanted) or holds(name_words(wanted), name_words(name))


def _asked(record: Record, passages: Mapping[str, Record]) -> _Asked:
    hops = record["hops"]
    picked: tuple[str, ...] = ()
    made: list[_Hop] = []
    for place, hop in enumerate(hops):
        passage = passages[hop["p"]]
        name = _looked_up(hops, place, passage["t"])
        tokens = max(16, round(len(passage["x"]) / _CHARACTERS_PER_TOKEN))
        made.append(_Hop(_question(record, place, picked, passages), hop["p"], tokens, name))
        picked = (*picked, name)
    last = _Hop(_question(record, len(hops), picked, passages), "", 0, "")
    return _Asked(record["id"], tuple(made), last)


def _looked_up(hops: list[Record], place: int, title: str) -> str:
    """The answer of the hop before that this one asks about; where there is none, what the passage is on."""
    named = [int(mark) - 1 for mark in re.findall(r"#(\d)", hops[place]["raw"])]
    before = [hops[number]["ans"] for number in named if number < place]
    return str(before[-1] if before else title)


def _question(
    record: Record, place: int, picked: tuple[str, ...], passages: Mapping[str, Record]
) -> Question:
    """Before the first hop the question itself is what was read."""
    asked = Text(TextKind.ASKED, record["q"])
    if not place:
        return Question(_AT, None, (asked, Text(TextKind.READ, record["q"])), at_most=_PROPOSED)
    before = record["hops"][place - 1]
    passage = passages[before["p"]]
    step = Text(TextKind.STEP, before["sub"])
    read = Text(TextKind.READ, passage["x"], passage["t"])
    return Question(_AT, None, (asked, step, read), picked, at_most=_PROPOSED)
