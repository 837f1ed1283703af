"""The compared systems as arms, each by a name and a setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

from dynbranch.sim.baselines.dsp import Dsp, DspSetting
from dynbranch.sim.baselines.foretelling import DRAFTER, SAMPLES, Accuracy
from dynbranch.sim.baselines.helium import Helium, HeliumSetting
from dynbranch.sim.baselines.instcache import InstCache, InstCacheSetting
from dynbranch.sim.baselines.parrot import Parrot, ParrotSetting
from dynbranch.sim.baselines.spagent import Spagent, SpagentSetting
from dynbranch.sim.baselines.spending import Spending
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Records, Serving
from dynbranch.sim.fleet.workflows import Workflow, Workload

Setting = InstCacheSetting | HeliumSetting | ParrotSetting | DspSetting | SpagentSetting


class Baseline(Serving, Protocol):
    @property
    def spending(self) -> Spending: ...


BaselineArm = Callable[[Fleet, Records, Workload, int], Baseline]
"""An ``Arm`` of ``fleet.playing`` that says what it spent."""

NAMES: Final = ("instcache", "helium", "parrot", "dsp", "spagent")


class UnknownArm(ValueError):
    """There is no such arm. The message names those there are."""


def setting_of(name: str) -> Setting:
    """As it is chosen in docs/baselines.md. Raises UnknownArm."""
    match name:
        case "instcache":
            return InstCacheSetting()
        case "helium":
            return HeliumSetting()
        case "parrot":
            return ParrotSetting()
        case "dsp":
            return DspSetting()
        case "spagent":
            return SpagentSetting()
        case _:
            raise UnknownArm(f"there is no arm {name!r}; there are {', '.join(NAMES)}")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """An arm with its setting, which goes to other processes as it is."""

    setting: Setting
    accuracy: Accuracy
    history: tuple[Workflow, ...]

    def __call__(self, fleet: Fleet, records: Records, workload: Workload, seed: int) -> Baseline:
        setting, template = self.setting, workload.template
        kind = template.workflow_type
        match setting:
            case InstCacheSetting():
                return InstCache(fleet, records, setting, self.history)
            case HeliumSetting():
                return Helium(fleet, records, setting, template)
            case ParrotSetting():
                return Parrot(fleet, records, setting)
            case DspSetting():
                return Dsp(fleet, records, setting, template, DRAFTER[self.accuracy].rates(kind), seed)
            case SpagentSetting():
                return Spagent(fleet, records, setting, template, SAMPLES[self.accuracy].rates(kind), seed)
            case _:
                assert_never(setting)


def arm(
    name: str,
    setting: Setting | None = None,
    *,
    accuracy: Accuracy = Accuracy.IMPLIED,
    history: Sequence[Workflow] = (),
) -> BaselineArm:
    """``history``: another stream, of which InstCache predicts what will be asked. ``accuracy``: of the
    models of DSP and SPAgent.

    Raises UnknownArm, also for a setting that is of another arm.
    """
    default = setting_of(name)
    chosen = default if setting is None else setting
    if type(chosen) is not type(default):
        raise UnknownArm(f"{type(chosen).__name__} is no setting of the arm {name!r}")
    return _Chosen(chosen, accuracy, tuple(history))
