"""Tables 1 and 2, and the share of what perfect prediction would gain: each part of DynBranch alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from dynbranch.bench.paper.cells import published_rate
from dynbranch.bench.paper.parts import (
    Found,
    Made,
    Rows,
    Table,
    blocks,
    least,
    mean_s,
    of_seeds,
    reduction,
    told,
)
from dynbranch.bench.paper.runs import H200, WORKLOADS, Seen, Size, Spec
from dynbranch.demo.measures import Figure, ratio

PUBLISHED: Final = ("low", "load")
KINDS: Final = ("repeat", "partial", "fresh")
REUSE_ARMS: Final = ("floor", "instcache", "helium", "c1")
TABLE_1: Final[Mapping[str, tuple[str, ...]]] = {
    "floor": ("14.4", "14.8", "13.6"),
    "instcache": ("0.01", "13.8", "14.6"),
    "helium": ("0.16", "10.3", "14.0"),
    "c1": ("0.01", "10.2", "14.1"),
}
AHEAD_ARMS: Final = ("c2", "spagent", "dsp", "c2-oracle", "spagent-published", "dsp-published")
TABLE_2: Final[Mapping[tuple[str, int], tuple[float, ...]]] = {
    ("c2", 4): (-21.9, -8.5, -34.0, -47.7),
    ("spagent", 4): (-10.6, 0.7, -25.0, 1.6),
    ("dsp", 4): (-11.2, -0.2, -24.7, -0.2),
    ("c2", 2): (-18.6, -8.7, -34.4, -46.6),
    ("spagent", 2): (-12.3, -0.7, -23.6, -1.0),
    ("dsp", 2): (-13.1, -0.4, -23.8, -0.7),
}


class ReuseAlone:
    """Sub-Agent, one workflow after another, of three kinds; nothing runs ahead."""

    name = "table 1"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return [self._spec(arm, size, seed) for arm in REUSE_ARMS for seed in size.seeds]

    def make(self, size: Size, found: Found) -> Made:
        seen = {arm: of_seeds(found, partial(self._spec, arm, size), size) for arm in REUSE_ARMS}
        rows: Rows = [("arm", *(f"{kind}, s (paper)" for kind in KINDS), "all, against the floor")]
        for arm in REUSE_ARMS:
            cells = [
                f"{mean_s(of_kind(seen[arm], kind)):.2f} ({paper})"
                for kind, paper in zip(KINDS, TABLE_1[arm], strict=True)
            ]
            rows.append((arm, *cells, told(reduction(seen[arm], seen["floor"]))))
        gain = kind_reduction(seen["c1"], seen["floor"], "partial")
        wrong = sum(one.wrong for runs in seen.values() for one in runs)
        data = {
            arm: {kind: round(mean_s(of_kind(runs, kind)), 4) for kind in KINDS} for arm, runs in seen.items()
        }
        return Made(
            {"c1_alone_partial_overlap": gain},
            {"mean_s": data, "unsafe_splices": wrong},
            (Table("Table 1: reuse alone (paper's mix: -32.2 %)", tuple(rows)),),
        )

    @staticmethod
    def _spec(arm: str, size: Size, seed: int) -> Spec:
        return Spec("sub-agent", arm, H200, clients=1, count=size.serial, seed=seed, mix="table 1")


def of_kind(runs: Sequence[Seen], kind: str) -> list[Seen]:
    found = []
    for one in runs:
        of = [latency for latency, its in zip(one.latencies_s, one.kinds, strict=True) if its == kind]
        found.append(replace(one, latencies_s=tuple(of), kinds=(kind,) * len(of)))
    return found


def kind_reduction(of: Sequence[Seen], against: Sequence[Seen], kind: str) -> Figure:
    """One workflow after another: each is an observation of its own."""
    pairs: list[tuple[float, float]] = []
    for one, other in zip(of_kind(of, kind), of_kind(against, kind), strict=True):
        pairs += zip(one.latencies_s, other.latencies_s, strict=True)
    over = ratio(pairs)
    return Figure(1 - over.value, 1 - over.ci_high, 1 - over.ci_low, over.n)


class AheadAlone:
    """All workloads without anything that repeats across workflows, one after another."""

    name = "table 2"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return [
            _serial(workload, arm, engines, size, seed)
            for workload in WORKLOADS
            for arm in ("floor", *AHEAD_ARMS)
            for engines in (4, 2)
            for seed in size.seeds
        ]

    def make(self, size: Size, found: Found) -> Made:
        def seen(workload: str, arm: str, engines: int) -> tuple[Seen, ...]:
            return of_seeds(found, partial(_serial, workload, arm, engines, size), size)

        gains = {
            (workload, arm, engines): reduction(
                seen(workload, arm, engines), seen(workload, "floor", engines)
            )
            for workload in WORKLOADS
            for arm in AHEAD_ARMS
            for engines in (4, 2)
        }
        rows: Rows = [("% against the floor (paper)", *WORKLOADS)]
        for engines in (4, 2):
            for arm in AHEAD_ARMS:
                paper = TABLE_2.get((arm, engines), ("", "", "", ""))
                cells = [
                    f"{-100 * gains[workload, arm, engines].value:+.1f} ({theirs})"
                    for workload, theirs in zip(WORKLOADS, paper, strict=True)
                ]
                rows.append((f"{engines} engines, {arm}", *cells))
        figures = {
            f"c2_alone_{workload.replace('-', '')}_{engines}": gains[workload, "c2", engines]
            for workload in WORKLOADS
            for engines in (4, 2)
        }
        data = {
            f"{workload}, {engines} engines, {arm}": gain.as_json()
            for (workload, arm, engines), gain in gains.items()
        }
        return Made(figures, data, (Table("Table 2: running ahead alone", tuple(rows)),))


def _serial(workload: str, arm: str, engines: int, size: Size, seed: int) -> Spec:
    return Spec(workload, arm, engines=engines, clients=1, count=size.serial, seed=seed, mix="fresh")


class ShareOfOracle:
    """What running ahead gains over reuse alone, beside what it would gain if every prediction were right."""

    name = "oracle"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return [
            self._spec(workload, arm, load, size, seed)
            for workload in WORKLOADS
            for arm in ("c1", "dynbranch", "oracle")
            for load in PUBLISHED
            for seed in size.seeds
        ]

    def make(self, size: Size, found: Found) -> Made:
        shares: dict[tuple[str, str], Figure] = {}
        rows: Rows = [("share of perfect prediction's gain, %", "low", "load", "its gain, s: low", "load")]
        for workload in WORKLOADS:
            gains = []
            for load in PUBLISHED:
                reuse, mine, oracle = (
                    of_seeds(found, partial(self._spec, workload, arm, load, size), size)
                    for arm in ("c1", "dynbranch", "oracle")
                )
                shares[workload, load] = share_of_gain(reuse, mine, oracle)
                gains.append(mean_s(reuse) - mean_s(oracle))
            rows.append(
                (
                    workload,
                    told(shares[workload, "low"]),
                    told(shares[workload, "load"]),
                    *(f"{gain:.2f}" for gain in gains),
                )
            )
        figures = {
            "share_of_oracle_c2_low_min": least([shares[workload, "low"] for workload in WORKLOADS]),
            "share_of_oracle_c2_load_min": least([shares[workload, "load"] for workload in WORKLOADS]),
        }
        data = {f"{workload}, {load}": share.as_json() for (workload, load), share in shares.items()}
        return Made(figures, data, (Table("Running ahead beside perfect prediction", tuple(rows)),))

    @staticmethod
    def _spec(workload: str, arm: str, load: str, size: Size, seed: int) -> Spec:
        return Spec(workload, arm, H200, rate=published_rate(workload, load), count=size.count, seed=seed)


def share_of_gain(reuse: Sequence[Seen], mine: Sequence[Seen], oracle: Sequence[Seen]) -> Figure:
    """Turns of the three arms, block by block."""
    pairs: list[tuple[float, float]] = []
    for base, one, best in zip(reuse, mine, oracle, strict=True):
        for before, after, ideal in zip(
            blocks(base.latencies_s), blocks(one.latencies_s), blocks(best.latencies_s), strict=True
        ):
            pairs.append((before - after, before - ideal))
    return ratio(pairs)
