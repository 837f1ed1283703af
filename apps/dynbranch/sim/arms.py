"""Every arm of the simulator by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from dynbranch.sim.baselines.arms import NAMES as BASELINES
from dynbranch.sim.baselines.arms import arm as baseline
from dynbranch.sim.baselines.foretelling import Accuracy
from dynbranch.sim.fleet.playing import Arm, floor
from dynbranch.sim.fleet.serving import ALWAYS, C1, C2, DYNBRANCH, ORACLE, ORACLE_C2, STATIC, DynBranchArm
from dynbranch.sim.fleet.workflows import Workflow

OURS: Final[Mapping[str, DynBranchArm]] = {
    "c1": C1,
    "c2": C2,
    "dynbranch": DYNBRANCH,
    "always": ALWAYS,
    "static": STATIC,
    "oracle": ORACLE,
    "c2-oracle": ORACLE_C2,
}
PUBLISHED: Final = "-published"
"""Of DSP and SPAgent: with the match rates that their own papers tell, not those that the paper's comparison
with them implies."""
ARMS: Final = ("floor", *BASELINES, *(f"{name}{PUBLISHED}" for name in ("dsp", "spagent")), *OURS)


class UnknownArm(ValueError):
    """There is no such arm. The message names those there are."""


def arm_of(name: str, *, history: Sequence[Workflow] = (), width: int | None = None) -> Arm:
    """``history``: workflows that were seen before, for arms that prepare themselves with them. ``width``:
    candidates at most, of those arms that are ours. Raises UnknownArm."""
    if name not in ARMS:
        raise UnknownArm(f"there is no arm {name!r}; there are {', '.join(ARMS)}")
    if name == "floor":
        return floor
    if name in OURS:
        ours = OURS[name]
        return ours if width is None else replace(ours, width=width)
    known = name.removesuffix(PUBLISHED)
    accuracy = Accuracy.IMPLIED if known == name else Accuracy.PUBLISHED
    return baseline(known, accuracy=accuracy, history=history)
