"""When workflows begin: a closed loop, evenly at random, in phases, or as in a recorded trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from dynbranch.sim.workloads.published import Numbers


@dataclass(frozen=True, slots=True)
class Phase:
    """``rate`` a second for ``seconds``. ``replay``: the share of repetitions meanwhile; None: the stream's
    own."""

    name: str
    rate: float
    seconds: float
    replay: float | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients, each begins its next workflow when its last has ended."""

    clients: int
    count: int


@dataclass(frozen=True, slots=True)
class Poisson:
    rate: float
    count: int


@dataclass(frozen=True, slots=True)
class Phased:
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """Gaps as between ``times``, over and over. ``rate``: all gaps are scaled to it; None: as they were."""

    name: str
    times: tuple[float, ...]
    count: int
    rate: float | None = None


Arrivals = Closed | Poisson | Phased | Traced


@dataclass(frozen=True, slots=True)
class Begin:
    """``replay`` overrides the stream's share."""

    at_s: float
    replay: float | None = None


def begins(arrivals: Arrivals, seed: int) -> list[Begin]:
    """The same seed gives the same gaps at any rate."""
    match arrivals:
        case Closed(count=count):
            return [Begin(0.0)] * count
        case Poisson(rate, count):
            chance, at, found = Random(f"gaps {seed}"), 0.0, []
            for _ in range(count):
                at += chance.expovariate(1.0) / rate
                found.append(Begin(at))
            return found
        case Phased(phases):
            return _phased(phases, Random(f"gaps {seed}"))
        case Traced():
            return _traced(arrivals)


def paper_phases(numbers: Numbers) -> tuple[Phase, ...]:
    """A low, B a burst, C as much with much reuse, D recovery."""
    told = zip("ABCD", *(numbers[f"phases.{name}"] for name in ("rates", "seconds", "replays")), strict=True)
    return tuple(Phase(*one) for one in told)


def phase_of(phases: Sequence[Phase], at_s: float) -> str:
    """The name of the phase in which a moment is; the last one's after its end."""
    end = 0.0
    for phase in phases:
        end += phase.seconds
        if at_s < end:
            return phase.name
    return phases[-1].name


def in_words(arrivals: Arrivals) -> str:
    match arrivals:
        case Closed(clients):
            return f"{clients} clients"
        case Poisson(rate):
            return f"{rate:g}/s"
        case Phased(phases):
            return "phases " + " ".join(f"{one.name}:{one.rate:g}/s*{one.seconds:g}s" for one in phases)
        case Traced(name, rate=rate):
            return f"gaps of {name}" + ("" if rate is None else f" at {rate:g}/s")


def _phased(phases: Sequence[Phase], chance: Random) -> list[Begin]:
    found: list[Begin] = []
    start = 0.0
    for phase in phases:
        at = start
        while (at := at + chance.expovariate(1.0) / phase.rate) < start + phase.seconds:
            found.append(Begin(at, phase.replay))
        start += phase.seconds
    return found


def _traced(trace: Traced) -> list[Begin]:
    gaps = [later - earlier for earlier, later in pairwise(trace.times)]
    mean_s = sum(gaps) / len(gaps) if gaps else 0.0
    if not mean_s:
        raise ValueError(f"the arrivals of {trace.name} have no gaps")
    scale = 1.0 if trace.rate is None else 1 / (trace.rate * mean_s)
    at, found = 0.0, []
    for number in range(trace.count):
        found.append(Begin(at))
        at += gaps[number % len(gaps)] * scale
    return found
