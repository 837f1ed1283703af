"""The best setting of each compared system, found on a stream of its own."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dynbranch.enginemodel.parameters import Parameters
from dynbranch.sim.baselines.arms import Setting, arm
from dynbranch.sim.baselines.dataflow import Limits
from dynbranch.sim.baselines.dsp import DspSetting
from dynbranch.sim.baselines.foretelling import Accuracy
from dynbranch.sim.baselines.helium import HeliumSetting
from dynbranch.sim.baselines.instcache import InstCacheSetting
from dynbranch.sim.baselines.parrot import ParrotSetting
from dynbranch.sim.baselines.spagent import SpagentSetting
from dynbranch.sim.fleet.playing import floor
from dynbranch.sim.fleet.runs import Outcome, run
from dynbranch.sim.fleet.workflows import Workflow, Workload

UNLIMITED: Final = Limits(tasks=1_000_000, tokens=1_000_000_000)

TRIED: Final[Mapping[str, tuple[Setting, ...]]] = MappingProxyType(
    {
        "instcache": tuple(InstCacheSetting(predictions=n) for n in (0, 256, 4096, 65_536)),
        "helium": tuple(
            HeliumSetting(capacity, slack) for capacity in (1024, 65_536) for slack in (0, 1, 4, 16)
        ),
        "parrot": tuple(
            ParrotSetting(limits)
            for limits in (Limits(), Limits(8, 8192), Limits(16, 32_768), Limits(64, 131_072), UNLIMITED)
        ),
        "dsp": tuple(DspSetting(offset=offset) for offset in (-1, 0, 1, 2)),
        "spagent": tuple(
            SpagentSetting(samples=samples, keep=keep, charged=charged)
            for samples in (1, 2, 4, 8)
            for keep in (False, True)
            for charged in (False, True)
        ),
    }
)
"""What is tried of each arm."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting, and its latency over the floor's."""

    setting: Setting
    over_floor: float
    extra_s: float


def tried(
    name: str,
    workload: Workload,
    parameters: Parameters,
    engines: int,
    seed: int,
    *,
    accuracy: Accuracy = Accuracy.IMPLIED,
    history: Sequence[Workflow] = (),
    settings: Sequence[Setting] = (),
) -> tuple[Tried, ...]:
    """The best first; of equally good ones the one that is tried first. Raises KeyError."""
    without = mean_s(run(workload, floor, parameters, engines, seed))
    found = []
    for setting in settings or TRIED[name]:
        by = arm(name, setting, accuracy=accuracy, history=history)
        outcome = run(workload, by, parameters, engines, seed)
        whole = outcome.account
        found.append(Tried(setting, mean_s(outcome) / without, whole.discarded_s + whole.draft_s))
    return tuple(sorted(found, key=lambda one: one.over_floor))


def mean_s(outcome: Outcome) -> float:
    """Of all measured turns."""
    return statistics.fmean(latency for one in outcome.plays for latency in one.turns_s)
