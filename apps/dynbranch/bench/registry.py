"""The benchmarks by name. Each is imported only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dynbranch.bench.result import Measured, Tell


@dataclass(frozen=True, slots=True)
class Bench:
    """``module`` has ``measure(tell) -> Measured``; where it ``takes_engine``, ``measure(tell, engine_url)``,
    with an empty URL for an engine of its own; where it ``takes_data``, ``measure(tell, data=folder)``, with
    None for the package's own records; where it ``takes_quick``, ``measure(tell, quick=...)``."""

    name: str
    module: str
    about: str
    takes_engine: bool = False
    takes_data: bool = False
    takes_quick: bool = False

    def load(
        self, engine_url: str = "", data: Path | None = None, *, quick: bool = False
    ) -> Callable[[Tell], Measured]:
        measure: Callable[..., Measured] = importlib.import_module(self.module).measure
        if self.takes_quick:
            return lambda tell: measure(tell, quick=quick)
        if self.takes_engine:
            return lambda tell: measure(tell, engine_url)
        if self.takes_data:
            return lambda tell: measure(tell, data=data)
        return measure


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
        Bench("hit_path", "dynbranch.bench.hit_path", "what a hit costs, also while a large write goes on"),
        Bench(
            "load",
            "dynbranch.bench.load_price",
            "prices on a real model under open-loop load: saturated, low, and where nothing can be foretold",
            takes_quick=True,
        ),
        Bench("names", "dynbranch.bench.name_figures", "reuse names against an engine's rendered prompts"),
        Bench("pass_through", "dynbranch.bench.pass_through", "what DynBranch costs where it can not help"),
        Bench(
            "overlap",
            "dynbranch.bench.overlap",
            "how much of a window one right fill hides",
            takes_quick=True,
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
