"""Calls that run before they are asked for, and their results, for one workflow; nothing survives its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dynbranch.sim.fleet.accounts import Account
from dynbranch.sim.fleet.engines import Fleet, Run
from dynbranch.sim.fleet.playing import Records, Served, Then
from dynbranch.sim.fleet.workflows import Call, Step
from dynbranch.sim.heap import Timer


def quietest(fleet: Fleet) -> int:
    """The engine with the least in flight, whoever waits for it."""
    places = fleet.places
    return min(range(len(places)), key=lambda number: places[number].canonical + places[number].ahead)


@dataclass(slots=True, eq=False)
class Early:
    """One call. ``chain`` is what it was begun for. ``followers``: who goes on when it ends; None: the
    harness."""

    call: Call
    value: str
    run: Run
    chain: Chain
    over: bool = False
    engine_s: float = 0.0
    used: bool = False
    followers: list[tuple[Chain | None, Callable[[], None]]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Chain:
    """Calls one after another. ``then``: when the last has its result."""

    calls: tuple[Call, ...]
    then: Callable[[], None] | None
    alive: bool = True
    timer: Timer | None = None
    consumed: bool = False
    began: list[Early] = field(default_factory=list)


class EarlyResults:
    """Of one workflow. Results are matched by exact content."""

    def __init__(self, fleet: Fleet, records: Records, account: Account) -> None:
        self._fleet = fleet
        self._records = records
        self._account = account
        self._found: dict[str, Early] = {}
        self._asked: set[str] = set()
        self._chains: list[Chain] = []

    def start(self, calls: Sequence[Call], then: Callable[[], None] | None = None) -> Chain:
        """``then`` may be called at once, where all has its result."""
        chain = Chain(tuple(calls), then)
        self._chains.append(chain)
        self._stage(chain, 0)
        return chain

    def take(self, call: Call, then: Then) -> bool:
        """The harness asks. False: it was not begun, and the caller has to see to it."""
        self._asked.add(call.content)
        early = self._found.get(call.content)
        if early is None:
            return False
        if not early.used:
            early.used = True
            self._account.consumed += not early.chain.consumed
            early.chain.consumed = True
        if early.over:
            self._fleet.heap.after(0.0, partial(then, Served("promoted", early.value)))
        else:
            self._fleet.adopt(early.run)
            early.followers.append((None, partial(then, Served("adopted", early.value))))
        return True

    def cancel(self, chain: Chain, *, forget: bool) -> None:
        """What of it only the chain itself waits for ends. ``forget``: its results go, too."""
        chain.alive = False
        if chain.timer is not None:
            chain.timer.cancel()
        if chain in self._chains:
            self._chains.remove(chain)
        for early in chain.began:
            early.followers = [(who, on) for who, on in early.followers if who is not chain]
            if early.used or early.followers:
                continue
            if (not early.over or forget) and self._found.get(early.call.content) is early:
                self._drop(early)

    def close(self) -> None:
        for chain in list(self._chains):
            self.cancel(chain, forget=False)
        for early in list(self._found.values()):
            if not early.used:
                self._drop(early)
        self._found.clear()

    def validate_state(self) -> None:
        """Raises AssertionError."""
        for content, early in self._found.items():
            assert early.call.content == content
            assert early.over or self._fleet.runs.get(early.run.number) is early.run
            assert early.over or early.run.ahead is not early.used
            assert not (early.over and early.followers)

    def _stage(self, chain: Chain, at: int) -> None:
        if not chain.alive:
            return
        if at == len(chain.calls):
            self._chains.remove(chain)
            if chain.then is not None:
                chain.then()
            return
        call = chain.calls[at]
        if call.content not in self._found and call.before_s:
            chain.timer = self._fleet.heap.after(call.before_s, partial(self._begin, chain, at))
        else:
            self._begin(chain, at)

    def _begin(self, chain: Chain, at: int) -> None:
        call = chain.calls[at]
        early = self._found.get(call.content)
        if early is None:
            if call.content in self._asked:
                # The workflow itself has come this far: there is nothing to run ahead of.
                self.cancel(chain, forget=False)
                return
            early = self._run(chain, call)
        if early.over:
            self._stage(chain, at + 1)
        else:
            early.followers.append((chain, partial(self._stage, chain, at + 1)))

    def _run(self, chain: Chain, call: Call) -> Early:
        self._account.stages += 1
        self._account.fills += not chain.began
        run = self._fleet.submit(quietest(self._fleet), call, self._ended, ahead=True)
        early = Early(call, self._records.value_of(Step(call)), run, chain)
        chain.began.append(early)
        self._found[call.content] = early
        return early

    def _ended(self, run: Run) -> None:
        early = self._found[run.call.content]
        assert early.run is run and run.slot_at is not None
        early.over = True
        early.engine_s = self._fleet.heap.now - run.slot_at
        self._account.used_s += early.engine_s
        followers, early.followers = early.followers, []
        for _, go_on in followers:
            go_on()

    def _drop(self, early: Early) -> None:
        del self._found[early.call.content]
        if not early.over:
            early.engine_s = self._fleet.abort(early.run)
            self._account.used_s += early.engine_s
        self._account.discarded_s += early.engine_s
