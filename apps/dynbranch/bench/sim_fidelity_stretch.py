"""The paper's Figure 5b on the engine model: how much fills stretch a canonical request beside them.

The experiment: so many fills run all the time, each begun anew with another prompt when it has ended;
canonical requests of one shape come one after the other. The paper gives the number of fills and the words of
their contexts. It does not give the shapes, which are chosen here.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dynbranch.domain.ids import Instant
from dynbranch.enginemodel.batch import BatchEngine
from dynbranch.enginemodel.messages import WAKE, Event, Finished, Submit
from dynbranch.enginemodel.parameters import BatchParameters

TOKENS_PER_WORD: Final = 4 / 3
"""Of English text, about."""

PROBE_PROMPT_TOKENS: Final = 500
PROBE_OUTPUT_TOKENS: Final = 270
"""What is decoded in the paper's routing window of 4.6 s."""

FILL_INSTRUCTIONS_TOKENS: Final = 32
FILL_OUTPUT_TOKENS: Final = 1000
"""Not published. A shorter fill reads its context more often in a given time."""

FIXED_CONTEXT_WORDS: Final = 540
"""The paper's "fixed context length" of the row of 1, 3 and 48 fills; not published either."""

WARM_S: Final = 30.0
_CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class Point:
    """``words`` of context in each of ``fills``; ``stretch`` is the paper's latency over that alone."""

    fills: int
    words: int
    stretch: float

    @property
    def name(self) -> str:
        return f"{self.fills} fills of {self.words} words"


POINTS: Final = (
    Point(1, FIXED_CONTEXT_WORDS, 1.04),
    Point(3, FIXED_CONTEXT_WORDS, 1.06),
    Point(48, FIXED_CONTEXT_WORDS, 1.53),
    Point(24, 0, 1.11),
    Point(24, 4500, 2.45),
)


@dataclass(frozen=True, slots=True)
class Shapes:
    """What the paper does not tell."""

    prompt_tokens: int = PROBE_PROMPT_TOKENS
    output_tokens: int = PROBE_OUTPUT_TOKENS
    fill_output_tokens: int = FILL_OUTPUT_TOKENS


@dataclass(frozen=True, slots=True)
class Stretched:
    """Latencies of canonical requests over the latency alone, and the share of the KV pool that fills held,
    at the beginning of each."""

    ratios: tuple[float, ...]
    kv_shares: tuple[float, ...]

    @property
    def stretch(self) -> float:
        return statistics.median(self.ratios)

    def error(self, point: Point) -> float:
        return abs(self.stretch / point.stretch - 1)


def stretched(
    parameters: BatchParameters, point: Point, *, seed: int, probes: int, shapes: Shapes = Shapes()
) -> Stretched:
    alone = _Machine(parameters, Point(0, 0, 1.0), shapes, random.Random(seed))
    alone_s = alone.probe()[0]
    machine = _Machine(parameters, point, shapes, random.Random(seed))
    machine.until(WARM_S)
    seen: Sequence[tuple[float, float]] = [machine.probe() for _ in range(probes)]
    return Stretched(tuple(latency / alone_s for latency, _ in seen), tuple(share for _, share in seen))


class _Machine:
    """One engine and its fills on virtual time."""

    def __init__(
        self, parameters: BatchParameters, point: Point, shapes: Shapes, chance: random.Random
    ) -> None:
        self._engine = BatchEngine(parameters)
        self._shapes = shapes
        self._chance = chance
        self._context_tokens = FILL_INSTRUCTIONS_TOKENS + round(point.words * TOKENS_PER_WORD)
        self._now = 0.0
        self._number = 0
        for _ in range(point.fills):
            # They are not in step with one another.
            self._fill(chance.randint(1, shapes.fill_output_tokens))

    def until(self, at: float) -> None:
        while (wake := self._engine.next_wake()) is not None and wake <= at:
            self._tell(WAKE, wake)
        self._tell(WAKE, at)

    def probe(self) -> tuple[float, float]:
        """Its latency, and the share of the pool that others held when it came."""
        self.until(self._now + self._chance.uniform(0, 1))
        self._number += 1
        key = (_CANONICAL, self._number)
        began, share = self._now, self._engine.gauges.kv_used_share
        ended = self._tell(Submit(key, self._shapes.prompt_tokens, self._shapes.output_tokens), began)
        while key not in ended:
            wake = self._engine.next_wake()
            assert wake is not None, "a request does not end"
            ended = self._tell(WAKE, wake)
        return ended[key] - began, share

    def _fill(self, output_tokens: int) -> None:
        self._number += 1
        self._tell(Submit(("fill", self._number), self._context_tokens, output_tokens, priority=1), self._now)

    def _tell(self, event: Event, now: float) -> dict[object, float]:
        """Who has ended, and when."""
        self._now = now
        effects = self._engine.handle(event, Instant(now))
        ended = {one.request: float(one.at) for one in effects if isinstance(one, Finished)}
        for request in ended:
            if isinstance(request, tuple) and request[0] == "fill":
                self._fill(self._shapes.fill_output_tokens)
        return ended
