"""Snapshots of admission: what Action 1 decided on. Drawn by seed in the shape of the paper's Appendix B, or
read from a file of real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import permutations, product
from pathlib import Path
from random import Random
from typing import Any

from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.ordering import (
    Priceable,
    Priced,
    is_feasible,
    order,
    order_exactly,
    sequence_utility,
    utility,
)
from dynbranch.controller.core.pricing.prices import Curve, Footprint, PriceCurves, prior_curves
from dynbranch.controller.core.pricing.quantiles import beta_quantile

VERSION = 1


class UnreadableSnapshots(ValueError):
    """A file of snapshots that is none. The message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    candidates: tuple[Priceable, ...]
    views: Mapping[str, View]
    curves: PriceCurves


@dataclass(frozen=True, slots=True)
class Ranges:
    """What snapshots are drawn from, evenly within each pair. The first three are Appendix B's: how many
    have two and three candidates, and the share of KV headroom that all of a snapshot's hold together at
    most. Stays are those of the paper's fills; a gain is the share of a stay that a window hides. The first
    of a ranking is right with ``first_rate``, each next with a share of what is left; rates are known from
    ``observations`` branches, and a fill is ready in time with ``use``."""

    of_two: int = 135
    of_three: int = 621
    most_headroom: float = 0.168
    pressure: tuple[float, float] = (0.0, 1.0)
    slots: tuple[int, ...] = (4, 8, 16, 24, 32)
    kv_used: tuple[float, float] = (0.0, 0.6)
    stay_s: tuple[float, float] = (2.7, 6.5)
    hidden_share: tuple[float, float] = (0.36, 1.0)
    first_rate: tuple[float, float] = (0.3, 0.9)
    next_share: tuple[float, float] = (0.3, 0.8)
    observations: tuple[int, int] = (0, 400)
    use: tuple[float, float] = (0.6, 1.0)

    @property
    def count(self) -> int:
        return self.of_two + self.of_three


TIGHT = Ranges(most_headroom=2.0, kv_used=(0.3, 0.9), pressure=(0.0, 0.6), slots=(16, 24, 32))
"""Candidates that do not all fit: what Appendix B says its archive did not hold."""


def draw(ranges: Ranges, rng: Random) -> list[Snapshot]:
    sizes = [2] * ranges.of_two + [3] * ranges.of_three
    rng.shuffle(sizes)
    curves = prior_curves()
    return [draw_one(ranges, size, ("engine",), curves, rng) for size in sizes]


def draw_one(
    ranges: Ranges, size: int, engines: tuple[str, ...], curves: PriceCurves, rng: Random
) -> Snapshot:
    views = {engine: _view(ranges, rng) for engine in engines}
    headroom = min(1 - view.o_kv for view in views.values())
    rate, left, candidates = rng.uniform(*ranges.first_rate), 1.0, []
    observed = rng.randint(*ranges.observations)
    for rank in range(size):
        stay_s = rng.uniform(*ranges.stay_s)
        kv_share = headroom * ranges.most_headroom / size * rng.uniform(0.1, 1.0)
        candidates.append(
            Priceable(
                selection=f"s{rank}",
                probability=_optimistic(rate, observed, rng) * rng.uniform(*ranges.use),
                gain_ms=1000 * stay_s * rng.uniform(*ranges.hidden_share),
                footprint=Footprint(stay_s, kv_share, kv_share * stay_s),
                engines=engines,
            )
        )
        left -= rate
        rate = left * rng.uniform(*ranges.next_share)
    return Snapshot(tuple(candidates), views, curves)


def _view(ranges: Ranges, rng: Random) -> View:
    slots = rng.choice(ranges.slots)
    fill_slots = slots // 2
    pressure = rng.uniform(*ranges.pressure)
    return View(
        rho_h=pressure,
        rho=pressure * rng.uniform(0.5, 1.0),
        o_fill=rng.randint(0, fill_slots - 1) / fill_slots,
        o_kv=rng.uniform(*ranges.kv_used),
        backlog=max(0.0, pressure - 1.0),
        slots=slots,
        fill_slots=fill_slots,
    )


def _optimistic(rate: float, observed: int, rng: Random) -> float:
    """The upper quantile of what so many branches tell of the rate."""
    yes = sum(rng.random() < rate for _ in range(observed))
    return beta_quantile(1.0 + yes, 1.0 + observed - yes, Constants().quantile)


# -- the three ways to decide ------------------------------------------------------------------------------


def repriced(snapshot: Snapshot) -> tuple[Priced, ...]:
    return order(snapshot.candidates, snapshot.views, snapshot.curves)


def one_shot(snapshot: Snapshot) -> tuple[tuple[int, str], ...]:
    """Every candidate by its utility at the load before any: which run, in which order and where, while they
    fit."""
    first = {one.selection: one for one in order_of_singles(snapshot)}
    ranked = sorted(
        (index for index, one in enumerate(snapshot.candidates) if first[one.selection].utility_ms > 0),
        key=lambda index: -first[snapshot.candidates[index].selection].utility_ms,
    )
    views, chosen = dict(snapshot.views), []
    for index in ranked:
        one = snapshot.candidates[index]
        engine = first[one.selection].engine
        if is_feasible(views[engine], one.footprint):
            views[engine] = views[engine].with_fill(one.footprint.kv_share)
            chosen.append((index, engine))
    return tuple(chosen)


def order_of_singles(snapshot: Snapshot) -> tuple[Priced, ...]:
    return tuple(order((one,), snapshot.views, snapshot.curves)[0] for one in snapshot.candidates)


def exhaustive(snapshot: Snapshot) -> tuple[tuple[int, str], ...]:
    """The best sequence of all, by trying every order of every subset on every engine."""
    best: tuple[tuple[int, str], ...] = ()
    best_ms = 0.0
    for size in range(1, len(snapshot.candidates) + 1):
        for chosen in permutations(range(len(snapshot.candidates)), size):
            for engines in product(*(snapshot.candidates[index].engines for index in chosen)):
                sequence = tuple(zip(chosen, engines, strict=True))
                worth_ms = worth(snapshot, sequence)
                if worth_ms is not None and worth_ms > best_ms:
                    best, best_ms = sequence, worth_ms
    return best


def worth(snapshot: Snapshot, sequence: tuple[tuple[int, str], ...]) -> float | None:
    """J_seq of (candidate, engine) pairs, in ms; None where one does not fit."""
    views, total = dict(snapshot.views), 0.0
    for index, engine in sequence:
        one = snapshot.candidates[index]
        view = views.get(engine)
        if view is None or not is_feasible(view, one.footprint):
            return None
        total += utility(one.probability, one.gain_ms, snapshot.curves.cost(view, one.footprint))
        views[engine] = view.with_fill(one.footprint.kv_share)
    return total


@dataclass(frozen=True, slots=True)
class Replayed:
    """One snapshot decided thrice, in ms of sequence utility; ``same_set`` as the oracle's."""

    repriced_ms: float
    one_shot_ms: float
    oracle_ms: float
    repriced_same_set: bool
    one_shot_same_set: bool
    dynamic_program_ms: float


def replay(snapshot: Snapshot) -> Replayed:
    mine, once, best = repriced(snapshot), one_shot(snapshot), exhaustive(snapshot)
    exact = sequence_utility(order_exactly(snapshot.candidates, snapshot.views, snapshot.curves))
    wanted = {snapshot.candidates[index].selection for index, _ in best}
    return Replayed(
        repriced_ms=sequence_utility(mine),
        one_shot_ms=worth(snapshot, once) or 0.0,
        oracle_ms=worth(snapshot, best) or 0.0,
        repriced_same_set={one.selection for one in mine if one.admitted} == wanted,
        one_shot_same_set={snapshot.candidates[index].selection for index, _ in once} == wanted,
        dynamic_program_ms=exact,
    )


# -- files -------------------------------------------------------------------------------------------------


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "version": VERSION,
        "candidates": [asdict(one) for one in snapshot.candidates],
        "views": {engine: asdict(view) for engine, view in snapshot.views.items()},
        "curves": {"slot": snapshot.curves.slot.points, "kv": snapshot.curves.kv.points},
    }


def snapshot_from(row: Mapping[str, Any]) -> Snapshot:
    """Raises KeyError, TypeError, ValueError."""
    if row["version"] != VERSION:
        raise ValueError(f"version {row['version']} is not {VERSION}")
    return Snapshot(
        candidates=tuple(
            Priceable(
                selection=str(one["selection"]),
                probability=float(one["probability"]),
                gain_ms=float(one["gain_ms"]),
                footprint=Footprint(**one["footprint"]),
                engines=tuple(one["engines"]),
            )
            for one in row["candidates"]
        ),
        views={engine: View(**view) for engine, view in row["views"].items()},
        curves=PriceCurves(
            *(Curve(tuple((x, y) for x, y in row["curves"][name])) for name in ("slot", "kv"))
        ),
    )


def read_snapshots(folder: Path) -> Iterator[Snapshot]:
    """Of every ``*.jsonl`` in it. Raises UnreadableSnapshots."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield snapshot_from(json.loads(line))
                except (KeyError, TypeError, ValueError) as error:
                    raise UnreadableSnapshots(f"{path.name}, line {number}: {error!r}") from None
