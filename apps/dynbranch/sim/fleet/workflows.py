"""What is asked of a simulated fleet: workflows as harnesses would play them, drawn before any arm runs.

Every arm is given the same workflows at the same times. A workflow knows its own future: who serves it is
told of each call only when it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dynbranch.domain.template import Template
from dynbranch.enginemodel.messages import Block


@dataclass(frozen=True, slots=True)
class Call:
    """One stage's request. Calls of equal ``content`` are one rendered input: they have one reuse name in a
    sharing group, and one result while nothing that they read is written.

    ``blocks`` as in ``enginemodel.messages.Submit``. ``reads``: records, ``source/key``. ``before_s``: a
    tool's or a retrieval's time between what came before and this request.
    """

    stage: str
    content: str
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[Block, ...] = ()
    reads: tuple[str, ...] = ()
    before_s: float = 0.0


def _no_chains() -> Mapping[str, tuple[Call, ...]]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Decision:
    """What one decision point comes to.

    ``picked``: the selection; empty where nothing follows. ``ranked``: what the shipped predictor says when
    the branch opens, best first, and ``spent_s`` how long it takes. ``chains``: for each of ``ranked``
    and ``picked`` the calls that would follow; those of what is picked are equal in content to calls that
    the workflow really makes later. ``shown_at``: with which output token of a window ``decode`` the choice
    can be read; None: not before its end. ``final``: nothing that follows can change what was
    shown, and the branch resolves there. ``spoken``: names that the decode speaks of before it chooses, each
    with its output token; they have chains, too.
    """

    point: str
    picked: tuple[str, ...]
    ranked: tuple[str, ...] = ()
    chains: Mapping[str, tuple[Call, ...]] = field(default_factory=_no_chains)
    spent_s: float = 0.0
    shown_at: int | None = None
    final: bool = False
    spoken: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A call, and what its output decides. In a window ``wait`` a person decides after the turn."""

    call: Call
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """``gap_s``: how long a person thinks before it. ``measured``: whether its time counts."""

    steps: tuple[Step, ...]
    gap_s: float = 0.0
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Workflow:
    """One running instance. ``at_s`` is when it begins; with a closed loop, that of none but the first few
    counts. ``repeats``: the number of the earlier workflow that this one says again, word for word;
    ``shares``: of one that has a part in common with it, on purpose."""

    number: int
    at_s: float
    tenant: str
    turns: tuple[Turn, ...]
    repeats: int | None = None
    shares: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Records change, and the change is reported."""

    at_s: float
    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """``clients`` > 0: a closed loop of so many, each begins its next workflow when its last has ended."""

    name: str
    template: Template
    workflows: tuple[Workflow, ...]
    writes: tuple[Write, ...] = ()
    clients: int = 0
