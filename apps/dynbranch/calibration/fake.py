"""An engine whose times follow a formula, at once and exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dynbranch.calibration.probing import Ran
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.runtime.clock import ManualClock


class FormulaEngine:
    """A probe takes what the decode steps of the engine model take beside the fills that run; a word is a
    token. Whoever is asked for more than ``probe_most`` tokens is a fill and runs until it is cancelled."""

    def __init__(self, parameters: BatchParameters, clock: ManualClock, *, probe_most: int) -> None:
        self.parameters = parameters
        self.probe_most = probe_most
        self.most_beside = 0
        self._clock = clock
        self._beside: list[int] = []

    async def run(self, prompt: str, tokens: int, begun: Callable[[], None]) -> Ran:
        words = len(prompt.split())
        if tokens > self.probe_most:
            return await self._fill(words, begun)
        begun()
        self.most_beside = max(self.most_beside, len(self._beside))
        step_ms = self.parameters.decode_ms(1 + len(self._beside), words + sum(self._beside))
        ms = tokens * step_ms + 1000 * words / self.parameters.prefill_tokens_per_s
        self._clock.advance(ms / 1000)
        return Ran(ms, words, tokens)

    async def _fill(self, words: int, begun: Callable[[], None]) -> Ran:
        self._beside.append(words)
        try:
            begun()
            await asyncio.get_running_loop().create_future()
        finally:
            self._beside.remove(words)
        raise AssertionError("a fill ends by being cancelled")
