"""A workflow type as its template declares it, and what is known of one running workflow.

A template says which stages there are, how each stage's request is written from the workflow's inputs and
earlier outputs, where the workflow decides, and which stages may run before it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from dynbranch.domain.errors import DomainError


class StageKind(Enum):
    CHAT = "chat"
    TOOL = "tool"


class Speculable(Enum):
    """Whether a stage may run before it is demanded. ONCE: what ran is given to one demand only, for stages
    that sample."""

    YES = "yes"
    ONCE = "once"
    NO = "no"


class ReadsKind(Enum):
    NONE = "none"
    SOURCE = "source"
    DECLARED = "declared"


class Window(Enum):
    """What keeps the decision: the model writes it, or a person is waited for."""

    DECODE = "decode"
    WAIT = "wait"


class Branching(Enum):
    """EXCLUSIVE: what is not selected is lost. INDEPENDENT: it may be demanded later."""

    EXCLUSIVE = "exclusive"
    INDEPENDENT = "independent"


class Origin(Enum):
    """What a value is looked for in."""

    INPUT = "input"
    REQUEST = "request"
    OUTPUT = "output"


class OutputPart(Enum):
    TEXT = "text"
    CALL_NAME = "call_name"
    CALL_ARGUMENTS = "call_arguments"


@dataclass(frozen=True, slots=True)
class Where:
    """Where values stand: in an input, in a stage's request or in its output.

    In this order: ``part`` of an output (``call`` names one tool, empty means any), the JSON ``path`` in it,
    the ``regex`` in each text that was found there (its group ``value``, else its first group, else all of
    it), and ``as_json`` reads each as JSON. ``every`` keeps all values, as a list; without it one is
    expected.
    """

    origin: Origin
    name: str
    path: str = ""
    regex: str = ""
    every: bool = False
    as_json: bool = False
    part: OutputPart = OutputPart.TEXT
    call: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """A named value of a workflow. It is read at every arrival of its stage; the last one counts."""

    name: str
    where: Where


@dataclass(frozen=True, slots=True)
class Reads:
    """What a stage reads beside its request. DECLARED: ``records`` are texts with slots, one record each."""

    kind: ReadsKind = ReadsKind.NONE
    records: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """``request`` writes the whole body; ``target`` is the tool's name, empty for a chat stage.

    ``constants`` are the parts of the request that every body of this stage has, in their order: the first is
    its beginning and the last its end. ``repeats``: the stage runs more than once in a workflow.
    """

    name: str
    kind: StageKind
    request: str
    target: str = ""
    speculable: Speculable = Speculable.NO
    reads: Reads = Reads()
    repeats: bool = False
    constants: tuple[str, ...] = ()


class MomentKind(Enum):
    ARRIVAL = "arrival"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Moment:
    """When a decision point's candidates can be computed: a stage has arrived, or its output is there."""

    kind: MomentKind
    stage: str


@dataclass(frozen=True, slots=True)
class PredictorUse:
    name: str
    parameters: tuple[tuple[str, str | int | float | bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """``menu``: where the closed set of candidates stands, if there is one. ``texts``: what a predictor may
    look for candidates in. ``unused``: what this workflow selected here before is no candidate again."""

    predictors: tuple[PredictorUse, ...]
    menu: Where | None = None
    texts: tuple[Where, ...] = ()
    unused: bool = False
    at_most: int = 8


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """``stage`` is the one whose output the window precedes (DECODE) or follows (WAIT). ``resolved_by`` tells
    the selection, in an output or in a later request; ``several``: it may name more than one. ``then``: the
    stages that run for a selection, in their order."""

    name: str
    stage: str
    resolved_by: Where
    window: Window
    branching: Branching
    opens: tuple[Moment, ...]
    candidates: Candidates
    then: tuple[str, ...]
    several: bool = False
    expires_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Template:
    """``digest`` is the SHA-256 of the file, in hexadecimal digits: it tells two versions apart."""

    workflow_type: str
    version: int
    inputs: tuple[Input, ...]
    stages: tuple[Stage, ...]
    decision_points: tuple[DecisionPoint, ...]
    digest: str = ""

    def stage(self, name: str) -> Stage:
        """Raises KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def point(self, name: str) -> DecisionPoint:
        """Raises KeyError."""
        for point in self.decision_points:
            if point.name == name:
                return point
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote. ``arguments`` is its text, as far as it has come."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Output:
    """What a stage gave, as far as it has come: a tool's result is its ``text``. ``finish`` is empty while it
    runs."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection that shows in an output while it is being written.

    ``closed``: its text is complete. ``final``: nothing that may follow adds another or takes it back. ``at``
    counts the characters of the output that had to be read to see it.
    """

    value: str
    closed: bool
    final: bool
    at: int


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """There is a decision, but it can not be read as a selection."""

    reason: str


Selected = tuple[str, ...] | Ambiguous | None
"""None: no decision at all."""


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkflowContext:
    """What is known of a workflow: its inputs by name, every stage's outputs and every decision point's
    selections in the order in which they came. A changed context is a new one."""

    inputs: Mapping[str, Any] = field(default_factory=_nothing)
    outputs: Mapping[str, tuple[Output, ...]] = field(default_factory=_nothing)
    selections: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=_nothing)

    def with_inputs(self, inputs: Mapping[str, Any]) -> WorkflowContext:
        return replace(self, inputs={**self.inputs, **inputs}) if inputs else self

    def with_output(self, stage: str, output: Output) -> WorkflowContext:
        return replace(self, outputs={**self.outputs, stage: (*self.outputs.get(stage, ()), output)})

    def with_selection(self, point: str, selection: tuple[str, ...]) -> WorkflowContext:
        made = (*self.selections.get(point, ()), selection)
        return replace(self, selections={**self.selections, point: made})


class RenderFailed(DomainError):
    """A request can not be written from this context. ``facts`` name the stage."""


class Renderer(Protocol):
    """Writes requests. One renderer belongs to one template."""

    def render(self, stage: str, context: WorkflowContext, selection: str | None = None) -> bytes:
        """The body of the stage's next request, byte for byte. ``selection`` is the candidate that it would
        run for; None: the last selection of the decision point that the stage follows.

        Raises RenderFailed.
        """
        ...

    def reads(self, stage: str, context: WorkflowContext, selection: str | None = None) -> tuple[str, ...]:
        """The records that the stage declares to read. Raises RenderFailed."""
        ...
