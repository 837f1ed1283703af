"""The pacer tells what the model says in its order, whatever those who are told do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from dynbranch.domain.ids import Instant
from dynbranch.enginemodel.messages import Pace, Submit
from dynbranch.enginemodel.model import engine_model
from dynbranch.enginemodel.parameters import FixedParameters, Parameters, preset
from dynbranch.stub_engine.pacer import Pacer


class Timer:
    def cancel(self) -> None: ...


class LateLoop:
    """Time stands in a test's hands, and goes on by itself whenever somebody looks: a machine with much to
    do. No timer ends by itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passes_s = 0.0

    def time(self) -> float:
        self.now += self.passes_s
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return Timer()


class Told:
    """``then`` is called at the token of that number."""

    def __init__(self, at: int = 0, then: Callable[[], None] | None = None) -> None:
        self.counts: list[int] = []
        self.over = 0
        self._at = at
        self._then = then

    def admitted(self, hit_tokens: int) -> None: ...

    def has_tokens(self, count: int) -> None:
        self.counts.append(count)
        if self._then is not None and count >= self._at:
            then, self._then = self._then, None
            then()

    def finished(self) -> None:
        self.over += 1

    def refused(self) -> None:
        raise AssertionError


def order(number: int) -> Submit:
    return Submit(number, 100, 40, every_token=True, pace=Pace(10.0, 10.0))


@pytest.mark.parametrize("parameters", [FixedParameters(block_tokens=0), preset("h200-qwen3-32b")])
def test_who_leaves_while_it_is_told_moves_nobody_back(parameters: Parameters) -> None:
    loop = LateLoop()
    pacer = Pacer(engine_model(parameters), cast(asyncio.AbstractEventLoop, loop))
    others = [Told(), Told()]
    newcomer = Told()

    def leave() -> None:
        pacer.abort(2)
        pacer.submit(order(4), newcomer)

    leaver = Told(3, leave)
    for number, told in ((1, others[0]), (2, leaver), (3, others[1])):
        pacer.submit(order(number), told)
    loop.now = float(pacer.model.next_wake() or Instant(0.0))
    loop.passes_s = 0.015
    while not all(told.over for told in (*others, newcomer)):
        pacer._wake()
    for told in (*others, newcomer, leaver):
        assert told.counts == sorted(set(told.counts)), "each is told once, and in its order"
        assert told.counts
    assert leaver.counts[-1] < 40
    assert not leaver.over
    assert [told.over for told in (*others, newcomer)] == [1, 1, 1]
