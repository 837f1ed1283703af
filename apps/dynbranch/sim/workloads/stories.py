"""What is common to those who make workflows of records: order, decisions, and what can be shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from random import Random
from typing import Generic, Protocol, TypeVar

from dynbranch.domain.template import Branching, Template
from dynbranch.records.loading import Records
from dynbranch.sim.fleet.workflows import Call, Decision, Turn
from dynbranch.sim.workloads.published import Numbers
from dynbranch.sim.workloads.sizes import Lengths, Prefixes

T = TypeVar("T")

Part = tuple[Call, ...]
"""What follows one selection: another workflow may need exactly the same."""


@dataclass(frozen=True, slots=True)
class Story:
    """What a workflow says, whenever it begins."""

    turns: tuple[Turn, ...]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Making:
    """What stories are made from.

    ``shown``: what shows of a choice in its decode: ``told``, from where the stream predictor keeps it on
    top; ``certain``, what gateways tell: names that are spoken of, and the choice from where the selector has
    it whole; ``never``: nothing. ``shared``: how much of a story is another's where they
    overlap, 0: one part. ``width``: candidates at most, None: as the file says. ``apart``: two records have
    nothing in common but what is lent.
    """

    records: Records
    numbers: Numbers
    lengths: Lengths
    seed: int
    prefixes: Prefixes = field(default_factory=Prefixes)
    shown: str = "told"
    branching: Branching | None = None
    gap_s: float | None = None
    shared: float = 0.0
    width: int | None = None
    apart: bool = False

    def own(self, number: int) -> str:
        """What only one workflow says: another stream's has no part in it."""
        return f"{self.seed}.{number}"

    def world(self, number: int, time: int) -> str:
        """Where equal contents are the same: in one round of a stream's records, or in one workflow."""
        return f"w{self.seed}.{number}" if self.apart else f"{self.seed}.{time}"

    def branching_of(self, workload: str) -> Branching:
        return self.branching or Branching(self.numbers[f"{workload}.branching"])


class Writer(Protocol):
    """Makes the workflows of one type. Predictions are asked and taught in the order of the stories."""

    @property
    def template(self) -> Template: ...

    def write(self, number: int, lent: Story | None = None) -> Story:
        """The next record of the stream. ``lent``: some part of that story is a part of this one, too."""
        ...

    def again(self, number: int, story: Story) -> Story:
        """The same contents at another time: what a person takes to think is not the same."""
        ...


class Deck(Generic[T]):
    """Records in an order drawn by seed; when all have come, they come again in another order."""

    def __init__(self, records: Sequence[T], what: str) -> None:
        if not records:
            raise ValueError(f"there are no records of {what}")
        self._records = records
        self._what = what
        self._order: list[int] = []
        self._round = -1

    def draw(self) -> tuple[int, T]:
        """Which time around it is, and a record."""
        if not self._order:
            self._round += 1
            self._order = list(range(len(self._records)))
            Random(f"order {self._what} {self._round}").shuffle(self._order)
        return self._round, self._records[self._order.pop()]


class Decks(Generic[T]):
    """Records by their depth, which is drawn by weight."""

    def __init__(
        self, records: Mapping[int, Sequence[T]], depths: Iterable[tuple[int, float]], what: str
    ) -> None:
        there = [(depth, weight) for depth, weight in depths if records.get(depth)]
        self._depths = [depth for depth, _ in there]
        self._weights = [weight for _, weight in there]
        self._decks = {depth: Deck(records[depth], f"{what} of {depth}") for depth in self._depths}
        self._chance = Random(f"depths {what}")
        if not there:
            raise ValueError(f"there are no records of {what}")

    def draw(self) -> tuple[int, T]:
        (depth,) = self._chance.choices(self._depths, self._weights)
        return self._decks[depth].draw()


class Calls:
    """The requests of a workload's stages, as long as its file says. ``stages`` in an order that stays: each
    has instructions of its own."""

    def __init__(self, making: Making, workload: str, stages: Sequence[str]) -> None:
        self._lengths, self._prefixes = making.lengths, making.prefixes
        self.tokens = {stage: making.numbers.tokens(f"{workload}.{stage}") for stage in stages}
        self._begin = {
            stage: making.prefixes.shared(place, self.tokens[stage].system)
            for place, stage in enumerate(stages)
        }

    def first_prompt(self, stage: str, content: str) -> int:
        tokens = self.tokens[stage]
        return tokens.system + self._lengths.prompt(tokens.prompt, content)

    def output(self, stage: str, content: str) -> int:
        return self._lengths.output(stage, self.tokens[stage].output, content)

    def call(self, stage: str, content: str, *, read: int = 0, before_s: float = 0.0) -> Call:
        """``read``: tokens of others' outputs in its prompt."""
        prompt_tokens = self.first_prompt(stage, content) + read
        output_tokens = self.output(stage, content)
        return Call(stage, content, prompt_tokens, output_tokens, self._begin[stage], before_s=before_s)

    def turn(self, stage: str, content: str, number: int, said: int) -> Call:
        """The conversation of workflow ``number`` goes on, of which ``said`` tokens stand already."""
        output_tokens = self.output(stage, content)
        blocks = self._prefixes.conversation(self._begin[stage], number, said, output_tokens)
        return Call(stage, content, said, output_tokens, blocks)


@dataclass(slots=True)
class Showing:
    """With which token of a decode its choice shows, and names are spoken of: measured on real decodes, drawn
    evenly. ``sequences``: of each decode its names, as (share, whether it is the choice)."""

    shares: Sequence[float]
    sequences: Sequence[Sequence[tuple[float, bool]]]
    chance: Random
    speaking: Random

    @classmethod
    def of(cls, making: Making, workload: str) -> Showing:
        shares = () if making.shown == "never" else making.numbers[f"{workload}.{making.shown}"]
        sequences = making.numbers[f"{workload}.spoken"] if making.shown == "certain" else ()
        return cls(
            shares, sequences, Random(f"shown {making.seed}"), Random(f"spoken {workload} {making.seed}")
        )

    def spoken(self, output_tokens: int, picked: str, others: Sequence[str]) -> tuple[tuple[int, str], ...]:
        """``others``: what a decode may speak of that does not choose it, each drawn once."""
        if not self.sequences:
            return ()
        left = [other for other in others if other != picked]
        self.speaking.shuffle(left)
        told: list[tuple[int, str]] = []
        for share, is_choice in self.speaking.choice(self.sequences):
            name = picked if is_choice else left.pop() if left else ""
            index = ceil(share * output_tokens) - 1
            if name and index < output_tokens - 1:
                told.append((index, name))
        return tuple(told)

    def at(self, output_tokens: int) -> int | None:
        if not self.shares:
            return None
        index = ceil(self.chance.choice(self.shares) * output_tokens) - 1
        return index if index < output_tokens - 1 else None


@dataclass(slots=True)
class Lending:
    """Which parts of a story are another's. ``parts``: by their place in the story that borrows."""

    shared: float
    chance: Random

    def parts(self, lent: Story | None, places: int) -> dict[int, Part]:
        if lent is None or not lent.parts or not places:
            return {}
        most = max(1, ceil(self.shared * places))
        count = min(most, places, len(lent.parts))
        taken = self.chance.sample(lent.parts, count)
        return dict(zip(self.chance.sample(range(places), count), taken, strict=True))


def decided(
    point: str,
    picked: str,
    ranked: Sequence[str],
    chains: Mapping[str, tuple[Call, ...]],
    spent_s: float,
    shown_at: int | None = None,
    spoken: tuple[tuple[int, str], ...] = (),
) -> Decision:
    """``picked`` may be empty: nothing follows."""
    made = (picked,) if picked else ()
    return Decision(point, made, tuple(ranked), chains, spent_s, shown_at, spoken=spoken)
