"""Figures 9, 10, 11, 13, 14 and 15: what width, engines, repetition, models, drafters, gates and load do."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from dynbranch.bench.paper.parts import (
    Found,
    Line,
    Made,
    Panel,
    Rows,
    Table,
    deviation_s,
    mean_ratio,
    mean_s,
    of_seeds,
    reduction,
    told,
)
from dynbranch.bench.paper.runs import Seen, Size, Spec

WIDTHS: Final = (0, 1, 2, 3)
PER_ENGINE_CLIENTS: Final = 1
REPEATS: Final = (0.22, 0.33, 0.44, 0.55, 0.66, 0.77)
SLOWNESS: Final[Mapping[str, float]] = {"0.6B": 0.05, "4B": 0.16, "8B": 0.29, "14B": 0.47, "32B": 1.0}
"""Of a decode step against the 32B model's: about the ratio of weights, no step under 0.85 ms."""
RATES: Final = (0.12, 0.3, 0.55, 0.8, 1.2, 2.4, 4.8)
"""The paper's five, and two towards the knee of this model."""
DRAFTERS: Final[Sequence[tuple[float, float, float] | None]] = (
    None,
    (0.20, 0.40, 0.02),
    (0.34, 0.61, 0.02),
    (0.34, 0.61, 0.95),
    (0.50, 0.75, 0.02),
    (0.50, 0.75, 1.6),
)
"""The paper's distilled 0.6B drafter has 0.34 and about 0.61, and takes 2.5 s a question, 0.95 s a hop."""
PHASES: Final = ("A", "B", "C", "D")
CONTROLS: Final = ("dynbranch", "static", "always")


def _fill_s(runs: Sequence[Seen]) -> tuple[float, float]:
    """Engine seconds a workflow: consumed and discarded."""
    count = sum(one.workflows for one in runs)
    return sum(one.consumed_s for one in runs) / count, sum(one.discarded_s for one in runs) / count


Point = tuple[float | str, float, float]
"""Across, up, and the spread to either side."""


def _curve(title: str, across: str, up: str, points: Sequence[Point]) -> Panel:
    x, y, spread = zip(*points, strict=True)
    return Panel(title, across, up, (Line(title, x, y, spread),))


class Width:
    """Routing, fresh: K candidates on four engines, and K = W - 1 on W engines at the same load each."""

    name = "figure 9"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        fixed = [self._fixed(width, size, seed) for width in WIDTHS for seed in size.seeds]
        return fixed + [self._box(engines, size, seed) for engines in (1, 2, 3, 4) for seed in size.seeds]

    def make(self, size: Size, found: Found) -> Made:
        rows: Rows = [("", "mean s", "consumed engine s", "discarded engine s", "discarded share %", "paper")]
        paper = ("18.2 s, 0", "share 20 %", "", "15.2 s, 19.8 GPU-s, share 33 %", "22.3 s", "", "", "15.2 s")
        data: dict[str, Any] = {}
        lines: dict[str, list[Point]] = {"a": [], "b": []}
        sets = [(f"K = {width}", "a", width, partial(self._fixed, width, size)) for width in WIDTHS]
        sets += [(f"W = {w}, K = {w - 1}", "b", w, partial(self._box, w, size)) for w in (1, 2, 3, 4)]
        for (title, panel, x, spec), theirs in zip(sets, paper, strict=True):
            runs = of_seeds(found, spec, size)
            used, lost = _fill_s(runs)
            share = 100 * lost / (used + lost) if used + lost else 0.0
            rows.append((title, f"{mean_s(runs):.2f}", f"{used:.2f}", f"{lost:.2f}", f"{share:.0f}", theirs))
            data[title] = {
                "mean_s": round(mean_s(runs), 3),
                "consumed_s": round(used, 3),
                "discarded_s": round(lost, 3),
            }
            lines[panel].append((x, mean_s(runs), deviation_s(runs)))
        panels = (
            _curve("four engines", "candidates K", "mean latency, s", lines["a"]),
            _curve("K = W - 1", "engines W", "mean latency, s", lines["b"]),
        )
        return Made({}, data, (Table("Figure 9: width and engines, Routing", tuple(rows)),), panels)

    @staticmethod
    def _fixed(width: int, size: Size, seed: int) -> Spec:
        arm = "c2" if width else "floor"
        return Spec("routing", arm, rate=0.8, count=size.count, seed=seed, mix="fresh", width=width or None)

    @staticmethod
    def _box(engines: int, size: Size, seed: int) -> Spec:
        arm = "c2" if engines > 1 else "floor"
        width = engines - 1 or None
        rate = 0.2 * engines
        return Spec(
            "routing",
            arm,
            engines=engines,
            rate=rate,
            count=size.count,
            seed=seed,
            mix="fresh",
            width=width,
        )


class Repetition:
    """Routing: how often a workflow is an earlier one again, and how slow the model is."""

    name = "figure 10"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return [
            spec
            for arm in ("floor", "dynbranch")
            for seed in size.seeds
            for spec in (
                *(self._repeat(arm, share, size, seed) for share in REPEATS),
                *(self._model(arm, slow, size, seed) for slow in SLOWNESS.values()),
            )
        ]

    def make(self, size: Size, found: Found) -> Made:
        rows: Rows = [("", "floor s", "DynBranch s", "speedup", "paper")]
        data: dict[str, Any] = {}
        curves: dict[str, list[Point]] = {"repeat": [], "model": []}
        for share in REPEATS:
            floor, mine = (
                of_seeds(found, partial(self._repeat, arm, share, size), size)
                for arm in ("floor", "dynbranch")
            )
            speedup = mean_ratio(floor, mine)
            paper = {0.22: "1.8", 0.77: "8.6"}.get(share, "")
            rows.append(_row(f"replay {share:g}", floor, mine, told(speedup, percent=False), paper))
            data[f"replay {share:g}"] = speedup.as_json()
            curves["repeat"].append((share, speedup.value, 0.0))
        for model, slow in SLOWNESS.items():
            floor, mine = (
                of_seeds(found, partial(self._model, arm, slow, size), size) for arm in ("floor", "dynbranch")
            )
            speedup = mean_ratio(floor, mine)
            rows.append(_row(model, floor, mine, told(speedup, percent=False), "1.75 to 2.06"))
            data[model] = {**speedup.as_json(), "saved_s": round(mean_s(floor) - mean_s(mine), 3)}
            curves["model"].append((model, speedup.value, 0.0))
        panels = (
            _curve("repeat rate", "replayed share", "speedup over the floor", curves["repeat"]),
            _curve("model size", "parameters", "speedup over the floor", curves["model"]),
        )
        return Made({}, data, (Table("Figure 10: repetition and model size, Routing", tuple(rows)),), panels)

    @staticmethod
    def _repeat(arm: str, share: float, size: Size, seed: int) -> Spec:
        return Spec("routing", arm, rate=0.3, count=size.count, seed=seed, replay=share)

    @staticmethod
    def _model(arm: str, slow: float, size: Size, seed: int) -> Spec:
        return Spec("routing", arm, rate=0.3, count=size.count, seed=seed, slowness=slow)


def _row(title: str, floor: Sequence[Seen], mine: Sequence[Seen], *more: str) -> tuple[str, ...]:
    return (title, f"{mean_s(floor):.2f}", f"{mean_s(mine):.2f}", *more)


class Drafters:
    """ReAct with other predictors: how often they are right, and how slow they are."""

    name = "figure 11"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return [self._spec("floor", None, size, seed) for seed in size.seeds] + [
            self._spec("dynbranch", drafter, size, seed) for drafter in DRAFTERS for seed in size.seeds
        ]

    def make(self, size: Size, found: Found) -> Made:
        rows: Rows = [("top-1, top-3, seconds", "mean s", "speedup", "fills a workflow", "paper")]
        floor = of_seeds(found, partial(self._spec, "floor", None, size), size)
        data: dict[str, Any] = {}
        for drafter in DRAFTERS:
            runs = of_seeds(found, partial(self._spec, "dynbranch", drafter, size), size)
            speedup = mean_ratio(floor, runs)
            fills = sum(one.fills for one in runs) / sum(one.workflows for one in runs)
            title = "the shipped ranker" if drafter is None else ", ".join(f"{one:g}" for one in drafter)
            rows.append(
                (title, f"{mean_s(runs):.2f}", told(speedup, percent=False), f"{fills:.2f}", "1.63 to 1.70")
            )
            data[title] = {**speedup.as_json(), "fills_per_workflow": round(fills, 3)}
        return Made({}, data, (Table("Figure 11b: predictors, ReAct", tuple(rows)),))

    @staticmethod
    def _spec(arm: str, drafter: tuple[float, float, float] | None, size: Size, seed: int) -> Spec:
        return Spec("react", arm, rate=0.12, count=size.count, seed=seed, drafter=drafter)


class Load:
    """Routing over the rate: what reuse removes, what running ahead removes of the rest, and its fills."""

    name = "figure 14"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return [
            self._spec(arm, rate, size, seed)
            for arm in ("floor", "c1", "dynbranch")
            for rate in RATES
            for seed in size.seeds
        ]

    def make(self, size: Size, found: Found) -> Made:
        rows: Rows = [
            ("rate a second", "floor s", "C1 removes %", "C2 removes s", "fills a workflow", "paper")
        ]
        paper = {0.12: "C1 40 to 48 %; 1.28 s, 1.4 fills", 0.3: "1.39 s", 1.2: "0.25 s, 0.9 fills"}
        data: dict[str, Any] = {}
        curves: dict[str, list[float]] = {"floor": [], "c1": [], "dynbranch": [], "fills": []}
        for rate in RATES:
            seen = {
                arm: of_seeds(found, partial(self._spec, arm, rate, size), size)
                for arm in ("floor", "c1", "dynbranch")
            }
            reuse = reduction(seen["c1"], seen["floor"])
            ahead_s = mean_s(seen["c1"]) - mean_s(seen["dynbranch"])
            fills = sum(one.fills for one in seen["dynbranch"]) / sum(
                one.workflows for one in seen["dynbranch"]
            )
            cells = (f"{mean_s(seen['floor']):.2f}", told(reuse), f"{ahead_s:.2f}", f"{fills:.2f}")
            rows.append((f"{rate:g}", *cells, paper.get(rate, "")))
            data[f"{rate:g}"] = {
                **{f"{arm}_s": round(mean_s(runs), 4) for arm, runs in seen.items()},
                "c1_removes": reuse.as_json(),
                "c2_over_c1": reduction(seen["dynbranch"], seen["c1"]).as_json(),
                "fills_per_workflow": round(fills, 3),
            }
            for arm, runs in seen.items():
                curves[arm].append(mean_s(runs))
            curves["fills"].append(fills)
        panels = (
            Panel(
                "decomposition",
                "rate a second",
                "mean latency, s",
                tuple(Line(arm, RATES, tuple(curves[arm])) for arm in ("floor", "c1", "dynbranch")),
                log_x=True,
            ),
            Panel(
                "fills",
                "rate a second",
                "fills a workflow",
                (Line("fills", RATES, tuple(curves["fills"])),),
                log_x=True,
            ),
        )
        return Made({}, data, (Table("Figure 14: Routing under load", tuple(rows)),), panels)

    @staticmethod
    def _spec(arm: str, rate: float, size: Size, seed: int) -> Spec:
        return Spec("routing", arm, rate=rate, count=size.count, seed=seed)


class Phases:
    """Routing through calm, a burst that saturates, many repeats at the same rate, and recovery."""

    name = "figure 15"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return [self._spec(arm, size, seed) for arm in ("c1", *CONTROLS) for seed in size.seeds]

    def make(self, size: Size, found: Found) -> Made:
        seen = {arm: of_seeds(found, partial(self._spec, arm, size), size) for arm in ("c1", *CONTROLS)}
        rows: Rows = [("arm", "whole trace s", *(f"{phase}, s" for phase in PHASES), "paper")]
        paper = {"dynbranch": "8.09 s", "static": "+5.7 %", "always": "+5.5 %"}
        for arm, runs in seen.items():
            cells = [f"{_of_phase(runs, phase):.2f}" for phase in PHASES]
            rows.append((arm, f"{mean_s(runs):.2f}", *cells, paper.get(arm, "")))
        data: dict[str, Any] = {
            arm: {
                "mean_s": round(mean_s(runs), 4),
                "phases_s": {phase: round(_of_phase(runs, phase), 4) for phase in PHASES},
                "by_phase": [dict(one.by_phase) for one in runs],
            }
            for arm, runs in seen.items()
        }
        figures = {
            "phased_vs_static": reduction(seen["dynbranch"], seen["static"]),
            "phased_vs_always": reduction(seen["dynbranch"], seen["always"]),
            "phased_vs_c1": reduction(seen["dynbranch"], seen["c1"]),
        }
        panels = (
            Panel(
                "what the controls cost",
                "phase",
                "mean latency, s",
                tuple(
                    Line(arm, PHASES, tuple(_of_phase(runs, phase) for phase in PHASES))
                    for arm, runs in seen.items()
                ),
                bars=True,
            ),
        )
        return Made(figures, data, (Table("Figure 15: phases, Routing", tuple(rows)),), panels)

    @staticmethod
    def _spec(arm: str, size: Size, seed: int) -> Spec:
        return Spec("routing", arm, phased=True, count=size.count, seed=seed)


def _of_phase(runs: Sequence[Seen], phase: str) -> float:
    of = [
        latency
        for one in runs
        for latency, its in zip(one.latencies_s, one.phases, strict=True)
        if its == phase
    ]
    return statistics.fmean(of) if of else 0.0
