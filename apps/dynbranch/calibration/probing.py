"""Canonical probes on a running engine, with and without fills beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from dynbranch.calibration.curves import Probes
from dynbranch.calibration.plan import Level, Plan, rounds
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks

PROBE_WORDS: Final = 24
PROBE_TOKENS: Final = (8, 256)
"""Least and most that a probe says."""

FILL_PROBES: Final = 6
"""A fill says so many times what a probe does, and begins anew where that was not enough."""

_WORDS: Final = (
    "air all ask bad bed big box boy bus but buy can car cat cow cup day dog dry egg end eye far few fly for "
    "fun get go good hat he her hot how ice in job key kid law leg let lot low man map may men new not now "
    "oil old one our out own pay red run sea see set she sky son sun tax tea ten the top two use war way wet"
)
"""A token each to most tokenizers."""

_SETTLE_S: Final = 0.1
"""An engine lets go of what was cut off within a step or two."""

_START_S: Final = 60.0
_RESTARTS_S: Final = 0.05


class ProbeFailed(Exception):
    """The engine did not answer as one does. The message is for a person."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One answer: how long it took, how many tokens its prompt had (0: not told) and it said."""

    ms: float
    prompt_tokens: int
    tokens: int


class Engine(Protocol):
    async def run(self, prompt: str, tokens: int, begun: Callable[[], None]) -> Ran:
        """Says exactly ``tokens`` where the engine can be made to. ``begun`` is called with the first of
        them. Raises ProbeFailed."""


Tell = Callable[[str, float], None]
"""What is going on, and which share of the time is over."""


@dataclass(slots=True)
class Prober:
    """``context_tokens``: prompt and output of one request, 0: not known."""

    engine: Engine
    clock: Clock
    chance: Random
    context_tokens: int = 0
    probe_tokens: int = PROBE_TOKENS[0]
    words_per_token: float = 1.0
    failures: list[str] = field(default_factory=list)

    @property
    def fill_tokens(self) -> int:
        """What a fill says at a time: half of a short context is left for its prompt."""
        wanted = FILL_PROBES * self.probe_tokens
        return min(wanted, max(1, self.context_tokens // 2)) if self.context_tokens else wanted

    async def size(self, probe_s: float) -> None:
        """How long a probe has to be to take about so long, and how many words make a token. Raises
        ProbeFailed."""
        few, most = PROBE_TOKENS
        await self._probe(few)
        longer = await self.engine.run(self._prompt(3 * PROBE_WORDS), few, _nothing)
        short = await self._probe(few)
        long = await self._probe(4 * few)
        if longer.prompt_tokens > short.prompt_tokens:
            self.words_per_token = 2 * PROBE_WORDS / (longer.prompt_tokens - short.prompt_tokens)
        token_ms = max(0.01, (long.ms - short.ms) / (3 * few))
        left_ms = 1000 * probe_s - short.ms
        self.probe_tokens = min(most, max(few, few + round(left_ms / token_ms)))

    async def measure(self, plan: Plan, *, most_rounds: int, seconds: float, tell: Tell) -> Probes:
        """Rounds until they are enough or the time is over. Raises ProbeFailed."""
        begun, probes = self.clock.now(), Probes([])
        for number, levels in enumerate(rounds(plan, self.chance)):
            rows: dict[Level, list[float]] = {}
            probes.by_round.append(rows)
            for level in levels:
                spent_s = self.clock.now() - begun
                if spent_s >= seconds:
                    return probes
                tell(f"round {number + 1}: a request beside {level.fills} fills", spent_s / seconds)
                try:
                    async with asyncio.timeout(seconds - spent_s):
                        found_ms = await self._beside(level)
                except TimeoutError:
                    return probes
                rows.setdefault(level, []).append(found_ms)
            if number + 1 >= most_rounds:
                return probes
        raise AssertionError("rounds are without end")

    async def _beside(self, level: Level) -> float:
        async with Tasks() as tasks:
            begun = [asyncio.Event() for _ in range(level.fills)]
            for number, event in enumerate(begun):
                tasks.spawn(self._fill(level, event), name=f"calibration fill {number}")
            try:
                async with asyncio.timeout(_START_S):
                    for event in begun:
                        await event.wait()
            except TimeoutError:
                why = self.failures[-1] if self.failures else "they got no slot"
                raise ProbeFailed(
                    f"{level.fills} fills did not begin within {_START_S:.0f} s: {why}"
                ) from None
            ran = await self._probe(self.probe_tokens)
        if level.fills:
            await self.clock.sleep(_SETTLE_S)
        # An engine that would not be made to say all of it is compared by the token.
        return ran.ms * self.probe_tokens / max(1, ran.tokens)

    async def _fill(self, level: Level, begun: asyncio.Event) -> None:
        words = PROBE_WORDS + round(level.context_tokens * self.words_per_token)
        while True:
            try:
                await self.engine.run(self._prompt(words), self.fill_tokens, begun.set)
            except ProbeFailed as error:
                self.failures.append(str(error))
                await self.clock.sleep(_RESTARTS_S)

    async def _probe(self, tokens: int) -> Ran:
        return await self.engine.run(self._prompt(PROBE_WORDS), tokens, _nothing)

    def _prompt(self, words: int) -> str:
        """Hardly ever the same beginning, so that no prefix of it is cached."""
        return " ".join(self.chance.choices(_WORDS.split(), k=words))


def _nothing() -> None:
    """Of a probe nobody waits for the beginning."""
