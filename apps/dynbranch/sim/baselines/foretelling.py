"""What the approximators of the compared systems say, drawn so that each is right as often as was published.

The systems bring models of their own that cannot run here. What they would say is a draw: right with a stated
rate, else one of the candidates that were not picked. It depends on the seed and on the place in the
workload alone, so that it is the same whatever else an arm does, and under every load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

from dynbranch.domain.template import Template, Window
from dynbranch.sim.fleet.playing import Play
from dynbranch.sim.fleet.workflows import Call, Decision

_DIGEST_BYTES: Final = 7


def drawn(*place: object) -> float:
    """Evenly from [0, 1), the same for the same place."""
    written = "\x1f".join(map(str, place)).encode()
    return int.from_bytes(blake2b(written, digest_size=_DIGEST_BYTES).digest()) / 256**_DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Rates:
    """How often an action is foretold, by the decision's place in its workflow; the last rate is that of all
    later ones."""

    by_place: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.by_place or not all(0 <= rate <= 1 for rate in self.by_place):
            raise ValueError("a rate is a share, and there is at least one")

    def at(self, place: int) -> float:
        return self.by_place[min(place, len(self.by_place) - 1)]


class Accuracy(Enum):
    """PUBLISHED: rates that were reported for the systems. IMPLIED: those with which the arms here gain what
    the paper's Table 2 reports for them; see docs/baselines.md."""

    PUBLISHED = "published"
    IMPLIED = "implied"


@dataclass(frozen=True, slots=True)
class Approximator:
    """``otherwise``: of workflow types that are not listed."""

    by_type: Mapping[str, Rates]
    otherwise: Rates

    def rates(self, workflow_type: str) -> Rates:
        return self.by_type.get(workflow_type, self.otherwise)


DRAFTER: Final[Mapping[Accuracy, Approximator]] = MappingProxyType(
    {
        Accuracy.PUBLISHED: Approximator(
            MappingProxyType({"routing": Rates((0.59,))}),
            Rates((0.34,)),
        ),
        Accuracy.IMPLIED: Approximator(
            MappingProxyType(
                {"routing": Rates((0.39,)), "react": Rates((0.01,)), "subagent": Rates((0.83,))},
            ),
            Rates((0.34,)),
        ),
    }
)
"""Of one draft. Published: the paper's distilled 0.6B drafter names 0.34 of branches first (§5.3); of a
bounded set of interfaces a deployed retriever finds at least 0.59 (§2.2)."""

SAMPLES: Final[Mapping[Accuracy, Approximator]] = MappingProxyType(
    {
        Accuracy.PUBLISHED: Approximator(
            MappingProxyType({}),
            Rates((0.73, 0.45, 0.28, 0.18, 0.11)),
        ),
        Accuracy.IMPLIED: Approximator(
            MappingProxyType(
                {"routing": Rates((0.22,)), "react": Rates((0.01,)), "subagent": Rates((0.68,))},
            ),
            Rates((0.73, 0.45, 0.28, 0.18, 0.11)),
        ),
    }
)
"""Of any of SAMPLED actions. Published: 0.73 with a task's first step and 0.11 late in it; between them
evenly in ratio, late from the fifth step on."""

SAMPLED: Final = 4
"""For so many samples SAMPLES hold."""


def of_one(any_rate: float, samples: int) -> float:
    """How often one of so many independent samples is right, where any of them is with ``any_rate``."""
    return float(1 - (1 - any_rate) ** (1 / samples))


def of_any(one_rate: float, samples: int) -> float:
    return float(1 - (1 - one_rate) ** samples)


def foretold(decision: Decision, rate: float, *place: object) -> tuple[str, ...]:
    """A selection: what is picked with the rate, else one candidate that is not. Empty: nothing follows."""
    if drawn(*place, "right") < rate:
        return decision.picked
    others = [name for name in decision.ranked if name not in decision.picked]
    if not others:
        # Nobody ranked anything else: it says something that nobody has heard of.
        return (f"{' '.join(decision.picked) or decision.point}, otherwise",)
    return (others[int(drawn(*place, "other") * len(others))],)


def chain_of(decision: Decision, name: str) -> tuple[Call, ...]:
    """The calls that would follow a foretold candidate, whether or not it exists."""
    known = decision.chains.get(name)
    if known is not None:
        return known
    for picked in decision.picked:
        like = decision.chains.get(picked, ())
        return tuple(replace(call, content=f"{call.content} [{name}]", blocks=()) for call in like)
    return ()


def decoded(template: Template) -> frozenset[str]:
    """The decision points whose choice the model writes."""
    return frozenset(point.name for point in template.decision_points if point.window is Window.DECODE)


def place_of(play: Play, turn: int, index: int) -> int:
    """How many decisions of the workflow come before that of a step."""
    before = [step for one in play.workflow.turns[:turn] for step in one.steps]
    before += play.workflow.turns[turn].steps[:index]
    return sum(step.decision is not None for step in before)
