"""The workflows of the two-level ablation: multi-hop questions as the paper's ReAct runs them, drawn by seed.

Every number is stated here with where it comes from. None was chosen by what the gates make of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
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

KIND: Final = "react"
THINK: Final = "think"
NOTE: Final = "note"
ANSWER: Final = "answer"
POINT: Final = "entity"

TEMPLATE: Final = Template(
    KIND,
    1,
    (),
    (
        Stage(THINK, StageKind.CHAT, request=THINK, repeats=True),
        Stage(NOTE, StageKind.CHAT, request=NOTE, repeats=True, speculable=Speculable.YES),
        Stage(ANSWER, StageKind.CHAT, request=ANSWER),
    ),
    (
        DecisionPoint(
            name=POINT,
            stage=THINK,
            resolved_by=Where(Origin.OUTPUT, THINK),
            window=Window.DECODE,
            branching=Branching.EXCLUSIVE,
            # As the demo's own: with the first thought, then with each passage, before it is noted.
            opens=(Moment(MomentKind.ARRIVAL, THINK), Moment(MomentKind.ARRIVAL, NOTE)),
            candidates=Candidates((PredictorUse("draft"),)),
            then=(NOTE,),
        ),
    ),
    "two-level",
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Tokens are means; each request's output is evenly up to ``spread`` shorter or longer.

    ``hops``: of two, three and four hops the shares of MuSiQue's questions. Thought and note are as long as
    makes a window 0.6 of the execution after it (the paper: 0.36 to 0.77) and a question about 22 s (21 s).

    ``first``: by tenant, how often the first of a ranking is what is looked up next: evenly from the paper's
    best top-1 (29 of 30 turns) to that of its drafter (0.34), for tenants whose questions recur more or less.
    With the last thought, which looks nothing up, 53 % of first-ranked fills are for nothing (the paper: 53
    to 55 %). Of what is left the next ranks are right with ``next_ranks``. Two or three candidates, 2.67 on
    average. Drafting: 2.5 s a question in the paper, over the openings that a question has here.

    No prompt shares its beginning with another: prefix caches help nobody.
    """

    hops: tuple[tuple[int, float], ...] = ((2, 0.6), (3, 0.3), (4, 0.1))
    think_tokens: int = 160
    note_tokens: int = 260
    answer_tokens: int = 60
    spread: float = 0.3
    prompt_tokens: int = 800
    passage_tokens: int = 400
    first: tuple[float, ...] = (0.97, 0.76, 0.55, 0.34)
    next_ranks: tuple[float, ...] = (0.375, 0.125)
    third_candidate: float = 0.67
    draft_ms: float = 730.0
    retrieval_ms: float = 50.0

    def rates(self, tenant: int) -> tuple[float, ...]:
        """By rank, how often it is right while a question goes on."""
        first = self.first[tenant]
        return (first, *((1 - first) * share for share in self.next_ranks))


@dataclass(frozen=True, slots=True)
class Size:
    """Of one request."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Hop:
    """One thought and what it leads to. ``chosen`` is empty where it says that the question can be answered;
    ``ranked`` is what the predictor will say. ``notes`` are as long for whatever is looked up."""

    think: Size
    note: Size
    ranked: tuple[str, ...]
    chosen: str


@dataclass(frozen=True, slots=True)
class Question:
    """One workflow; the last hop only finishes."""

    number: int
    at: float
    tenant: int
    hops: tuple[Hop, ...]
    answer: Size


def questions(traffic: Traffic, *, rate: float, count: int, seed: int) -> tuple[Question, ...]:
    """``count`` Poisson arrivals, ``rate`` a second. The same seed asks the same questions at any rate."""
    gaps, contents = Random(f"gaps {seed}"), Random(f"contents {seed}")
    found, at = [], 0.0
    for number in range(count):
        at += gaps.expovariate(1.0) / rate
        found.append(_question(traffic, number, at, contents))
    return tuple(found)


def _question(traffic: Traffic, number: int, at: float, chance: Random) -> Question:
    counts, weights = zip(*traffic.hops, strict=True)
    (count,) = chance.choices(counts, weights)
    tenant = chance.randrange(len(traffic.first))
    hops = [_hop(traffic, tenant, place, chance, last=place == count) for place in range(count + 1)]
    told = traffic.prompt_tokens + count * traffic.note_tokens
    answer = Size(told, _length(traffic.answer_tokens, traffic, chance))
    return Question(number, at, tenant, tuple(hops), answer)


def _hop(traffic: Traffic, tenant: int, place: int, chance: Random, *, last: bool) -> Hop:
    told = traffic.prompt_tokens + place * traffic.note_tokens
    think = Size(told, _length(traffic.think_tokens, traffic, chance))
    note = Size(traffic.prompt_tokens + traffic.passage_tokens, _length(traffic.note_tokens, traffic, chance))
    rates = traffic.rates(tenant)
    width = len(rates) - (chance.random() >= traffic.third_candidate)
    ranked = tuple(f"entity {place} {rank}" for rank in range(width))
    rank = _rank(rates, chance.random())
    if last:
        return Hop(think, note, ranked, "")
    return Hop(think, note, ranked, f"entity {place} {rank}" if rank < width else f"entity {place} other")


def _rank(rates: Sequence[float], drawn: float) -> int:
    """Which rank is right; as many as there are: none of them."""
    for rank, rate in enumerate(rates):
        if drawn < rate:
            return rank
        drawn -= rate
    return len(rates)


def _length(mean: int, traffic: Traffic, chance: Random) -> int:
    return max(1, round(mean * chance.uniform(1 - traffic.spread, 1 + traffic.spread)))
