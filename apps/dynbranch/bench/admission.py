"""Admission without an engine: how much of the best order's utility the repricing rule keeps, what a decision
costs, and how soon a class that has turned is known for it.

Three arms decide on the same snapshots: the rule, the same rule with every candidate priced once, and an
oracle that tries every order of every subset. All are judged by the oracle's measure, what each fill is worth
at the load that those before it leave. Snapshots are drawn (``admission_snapshots.Ranges``), and noted of
simulated workflows (``admission_simulated``); with ``--data`` exported ones are replayed beside them. For
classes that turn, and for what learning costs, the gate itself is driven (``admission_regimes``,
``admission_regret``).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, Final

from dynbranch.bench.admission_regimes import STEADY, USEFUL, USELESS, Drive, Traffic
from dynbranch.bench.admission_regret import swept
from dynbranch.bench.admission_simulated import LOADS, simulated
from dynbranch.bench.admission_snapshots import (
    TIGHT,
    Ranges,
    Replayed,
    Snapshot,
    UnreadableSnapshots,
    draw,
    read_snapshots,
    replay,
)
from dynbranch.bench.admission_timings import times_us
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.demo.measures import Figure, exact, median, quantile, ratio

SEEDS: Final = (1, 2, 3)
ROUNDS: Final = 2000
DRIVES: Final = 30
"""Seeds for each way to be useless."""

REGRET_SEEDS: Final = 5
LEARNED: Final = 2000
"""Branches whose regret is summed."""
QUESTIONS: Final = 150
"""Simulated workflows at each load."""

_USELESS_BRANCHES: Final = 300
_USEFUL_BRANCHES: Final = 150
_AT_MOST: Final = 2000

_ROUNDING_MS: Final = 1e-6


def measure(
    tell: Tell,
    *,
    data: Path | None = None,
    seeds: Sequence[int] = SEEDS,
    rounds: int = ROUNDS,
    drives: int = DRIVES,
    questions: int = QUESTIONS,
    learned: int = LEARNED,
) -> Measured:
    """Raises BenchFailed where ``data`` holds no snapshots."""
    replays = {
        "appendix_b": [
            one for seed in seeds for one in _replayed("drawn", draw(Ranges(), Random(seed)), tell)
        ],
        "tight": [one for seed in seeds for one in _replayed("tight", draw(TIGHT, Random(seed)), tell)],
    }
    noted = [snapshot for load in LOADS for snapshot in simulated(load, seed=seeds[0], count=questions)]
    replays["simulated"] = _replayed("simulated", noted, tell)
    if data is not None:
        replays["real"] = _replayed("real", _real(data), tell)
    times = times_us(rounds, Random(seeds[0]), lambda done: tell("decisions timed", done, rounds))
    turns = _turned(drives, tell)
    reopened = [count for turn in turns.values() for count in turn["reopen"]]
    closed = [count for turn in turns.values() for count in turn["close"]]
    tell("regret", 0, 1)
    lost = swept(range(REGRET_SEEDS), learned)
    drawn = replays["appendix_b"]
    figures = {
        "repriced_share_of_oracle": share_of_oracle(drawn),
        "one_shot_share_of_oracle": share_of_oracle(drawn, once=True),
        "tight_repriced_share_of_oracle": share_of_oracle(replays["tight"]),
        "simulated_repriced_share_of_oracle": share_of_oracle(replays["simulated"]),
        "decision_k4_us": median(times["k4"]),
        "decision_k8_us": median(times["k8"]),
        "decision_k4_one_engine_us": median(times["k4_one_engine"]),
        "decision_k4_exact_us": median(times["k4_exact"]),
        "action0_us": median(times["action0"]),
        "action0_with_trial_us": median(times["action0_with_trial"]),
        "regime_change_branches_to_reopen": median(reopened),
        "regime_change_branches_to_reopen_p90": quantile(reopened, 0.9),
        "regime_change_branches_to_close": median(closed),
        "regime_change_branches_to_close_p90": quantile(closed, 0.9),
        "regret_second_half_share": ratio([(row["gate_second_half_ms"], row["gate_ms"]) for row in lost]),
        "regret_over_median_threshold": ratio([(row["gate_ms"], row["median_threshold_ms"]) for row in lost]),
        "dynamic_program_off_oracle": exact(sum(_is_off(one) for one in drawn), len(drawn)),
    }
    if "real" in replays:
        figures["real_repriced_share_of_oracle"] = share_of_oracle(replays["real"])
    raw: dict[str, Any] = {
        "seeds": list(seeds),
        "ranges": {"appendix_b": asdict(Ranges()), "tight": asdict(TIGHT)},
        "table_b1": {name: table_b1(rows) for name, rows in replays.items()},
        "table_b1_one_shot": {name: table_b1(rows, once=True) for name, rows in replays.items()},
        "regret": lost,
        "simulated": {"rates": list(LOADS), "questions": questions},
        "regimes": {
            "traffic": asdict(Traffic()),
            "useful": asdict(USEFUL),
            "useless": {name: asdict(truth) for name, truth in USELESS.items()},
            "steady": STEADY,
            "branches": turns,
        },
        "times_us": {kind: _quantiles(values) for kind, values in times.items()},
    }
    failures: tuple[str, ...] = ()
    if figures["dynamic_program_off_oracle"].value:
        failures = ("the exact order is not the best of all orders",)
    return Measured(figures, raw, failures, shown(replays), "Against the ordered-subset optimum")


def turned(seed: int, way: str) -> tuple[int, int]:
    """Of a class that was useless and turns useful, then useless again: branches until it is open, and until
    it is closed."""
    drive = Drive(seed)
    for _ in range(_USELESS_BRANCHES):
        drive.branch(USELESS[way])
    reopen = drive.until(USEFUL, opened=True, at_most=_AT_MOST)
    for _ in range(_USEFUL_BRANCHES):
        drive.branch(USEFUL)
    return reopen, drive.until(USELESS[way], opened=False, at_most=_AT_MOST)


def _turned(drives: int, tell: Tell) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {way: {"reopen": [], "close": []} for way in USELESS}
    for number in range(drives):
        tell("classes that turn", number, drives)
        for way, counts in found.items():
            reopen, close = turned(number, way)
            counts["reopen"].append(reopen)
            counts["close"].append(close)
    return found


def share_of_oracle(rows: Sequence[Replayed], *, once: bool = False) -> Figure:
    """Of the sums over the snapshots that have a positive optimum."""
    return ratio([(_worth(one, once=once), one.oracle_ms) for one in rows if one.oracle_ms > 0])


def table_b1(rows: Sequence[Replayed], *, once: bool = False) -> dict[str, float]:
    """The rows of the paper's Table B.1, and how many snapshots they are of."""
    positive = [one for one in rows if one.oracle_ms > 0]
    shares = sorted(_worth(one, once=once) / one.oracle_ms for one in positive)
    same = [one.one_shot_same_set if once else one.repriced_same_set for one in positive]
    if not positive:
        return {"snapshots": len(rows), "positive_optimum": 0}
    return {
        "snapshots": len(rows),
        "positive_optimum": len(positive),
        "same_set": sum(same),
        "same_set_share": sum(same) / len(positive),
        "same_value": sum(abs(_worth(one, once=once) - one.oracle_ms) < _ROUNDING_MS for one in positive),
        "utility_share": sum(_worth(one, once=once) for one in positive)
        / sum(one.oracle_ms for one in positive),
        "median": statistics.median(shares),
        "percentile_5": shares[int(0.05 * len(shares))],
        "minimum": shares[0],
    }


def shown(replays: dict[str, list[Replayed]]) -> tuple[tuple[str, ...], ...]:
    columns = {
        f"{name}{', one-shot' if once else ''}": table_b1(rows, once=once)
        for name, rows in replays.items()
        for once in (False, True)
    }
    measures = ("snapshots", "positive_optimum", "same_set_share", "utility_share", "median")
    rows = [
        (key, *(f"{column[key]:.4g}" if key in column else "" for column in columns.values()))
        for key in (*measures, "percentile_5", "minimum")
    ]
    return (("measure", *(name.replace("_", " ") for name in columns)), *rows)


def _replayed(what: str, snapshots: Sequence[Snapshot], tell: Tell) -> list[Replayed]:
    rows = []
    for number, snapshot in enumerate(snapshots):
        if number % 50 == 0:
            tell(f"{what} snapshots", number, len(snapshots))
        rows.append(replay(snapshot))
    return rows


def _real(folder: Path) -> list[Snapshot]:
    try:
        found = list(read_snapshots(folder))
    except UnreadableSnapshots as error:
        raise BenchFailed(str(error)) from None
    if not found:
        raise BenchFailed(f"{folder} holds no snapshots (*.jsonl)")
    return found


def _is_off(one: Replayed) -> bool:
    return abs(one.dynamic_program_ms - one.oracle_ms) > _ROUNDING_MS


def _worth(one: Replayed, *, once: bool) -> float:
    return one.one_shot_ms if once else one.repriced_ms


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p5": 0.05, "p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: ordered[int(share * (len(ordered) - 1))] for name, share in at.items()}
