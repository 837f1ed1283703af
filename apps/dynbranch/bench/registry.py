"""The benchmarks by name. Each is imported only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dynbranch.bench.result import Measured, Tell


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person asks of a run. ``engine_url``: empty for an engine of the benchmark's own; ``data``: None
    for the package's own records; ``parts``: none are all; ``pictures``: a folder for them."""

    engine_url: str = ""
    data: Path | None = None
    quick: bool = False
    parts: tuple[str, ...] = ()
    pictures: Path | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """``module`` has ``measure(tell) -> Measured``, with those of a person's wishes that it ``takes``:
    ``engine_url``, ``data``, ``quick``, or ``parts`` and ``pictures``."""

    name: str
    module: str
    about: str
    takes_engine: bool = False
    takes_data: bool = False
    takes_quick: bool = False
    takes_parts: bool = False

    def load(self, wishes: Wishes) -> Callable[[Tell], Measured]:
        measure: Callable[..., Measured] = importlib.import_module(self.module).measure
        taken: dict[str, object] = {}
        if self.takes_engine:
            taken["engine_url"] = wishes.engine_url
        if self.takes_data:
            taken["data"] = wishes.data
        if self.takes_quick:
            taken["quick"] = wishes.quick
        if self.takes_parts:
            taken |= {"parts": wishes.parts, "pictures": wishes.pictures}
        return lambda tell: measure(tell, **taken)


BENCHES = {
    bench.name: bench
    for bench in (
        Bench(
            "admission",
            "dynbranch.bench.admission",
            "which fills run: the rule beside the best of all orders, and what a decision costs",
            takes_data=True,
        ),
        Bench(
            "branches",
            "dynbranch.bench.branches",
            "four workflows on a real model, with and without running ahead: equality, latency, aborts",
            takes_quick=True,
        ),
        Bench(
            "chaos",
            "dynbranch.bench.chaos",
            "branches with a fault at every await: what stays reserved",
            takes_quick=True,
        ),
        Bench("csl", "dynbranch.bench.csl_scale", "the store at scale: demands, memory, cascades"),
        Bench("demo", "dynbranch.bench.demo_passes", "the main job on real input: equality, hits, freshness"),
        Bench(
            "fidelity",
            "dynbranch.bench.fidelity",
            "three protocols, streamed and plain, executed, recorded and run ahead: one answer",
            takes_quick=True,
        ),
        Bench("hit_path", "dynbranch.bench.hit_path", "what a hit costs, also while a large write goes on"),
        Bench(
            "harnesses",
            "dynbranch.bench.harnesses",
            "whole tasks of real coding agents: with DynBranch as without, and again from records",
        ),
        Bench(
            "load",
            "dynbranch.bench.load_price",
            "prices on a real model under open-loop load: saturated, low, and where nothing can be foretold",
            takes_quick=True,
        ),
        Bench("names", "dynbranch.bench.name_figures", "reuse names against an engine's rendered prompts"),
        Bench(
            "normalise",
            "dynbranch.bench.normalise",
            "from the bytes of a request to its name, in three protocols",
            takes_quick=True,
        ),
        Bench("pass_through", "dynbranch.bench.pass_through", "what DynBranch costs where it can not help"),
        Bench(
            "overlap",
            "dynbranch.bench.overlap",
            "how much of a window one right fill hides",
            takes_quick=True,
        ),
        Bench(
            "paper",
            "dynbranch.bench.paper.measure",
            "the paper's figures and tables on simulated engines: all arms, loads, machines and sweeps",
            takes_data=True,
            takes_quick=True,
            takes_parts=True,
        ),
        Bench(
            "peers", "dynbranch.bench.peers", "DynBranch, LiteLLM, vllm-router and a plain proxy side by side"
        ),
        Bench(
            "routing",
            "dynbranch.bench.routing",
            "several engines: whose prefix cache is hit, and what one dead or mute engine does to others",
        ),
        Bench(
            "predictors",
            "dynbranch.bench.predictors",
            "decisions foretold: how often, how fast, and when a decode tells its choice",
            takes_data=True,
        ),
        Bench(
            "sim_fidelity",
            "dynbranch.bench.sim_fidelity",
            "the simulator beside the paper's curve of fills, and beside a real run on this machine",
            takes_quick=True,
        ),
        Bench(
            "sim_speed",
            "dynbranch.bench.sim_speed",
            "simulated requests a minute on a core, at any length of a run, and what each part takes",
            takes_quick=True,
        ),
        Bench("store", "dynbranch.bench.store", "the store under races, crashes and hostile input"),
        Bench(
            "two_level",
            "dynbranch.bench.two_level",
            "both gates on and off, and fixed thresholds: fills and latency at the knee of the load",
            takes_quick=True,
        ),
        Bench(
            "vllm",
            "dynbranch.bench.vllm",
            "clients that leave a real vLLM: how soon it stops, and what stays behind",
            takes_engine=True,
        ),
        Bench("start", "dynbranch.bench.start_time", "from nothing to the whole stack's first completion"),
    )
}
