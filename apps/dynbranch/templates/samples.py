"""What was known when a recorded request came: the material that a template is learned from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.template import Output, StageKind
from dynbranch.naming.document import Json, parse_body, parse_text
from dynbranch.rendering.json_text import SPELLINGS, spell_json
from dynbranch.templates.traffic import Exchange, by_workflow, events

_SPELLINGS_BY_USE: Final = ("json_compact", "json", "json_unicode", "json_compact_ascii")


@dataclass(frozen=True, slots=True)
class Known:
    """An output, and what it is as JSON; ``parsed`` is None where it is none."""

    output: Output
    parsed: Json


@dataclass(frozen=True, slots=True)
class Sample:
    """One recorded request of a stage. ``outputs`` and ``requests`` are what came before it, by stage;
    ``step`` is the round of a loop that is looked at."""

    workflow_id: str
    stage: str
    body: Json
    outputs: dict[str, tuple[Known, ...]]
    requests: dict[str, Json]
    previous: str
    reads: tuple[str, ...] | None
    step: int | None = None

    def at(self, step: int) -> Sample:
        return replace(self, step=step)


@dataclass(slots=True)
class StageSamples:
    """``spelling`` is the filter that writes such bodies; empty where none does."""

    name: str
    kind: StageKind
    target: str
    spelling: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def repeats(self) -> bool:
        return len({sample.workflow_id for sample in self.samples}) < len(self.samples)


@dataclass(slots=True)
class Material:
    """Stages in their order within a workflow. ``unread`` are bodies that are not JSON."""

    workflow_type: str
    workflows: int = 0
    stages: dict[str, StageSamples] = field(default_factory=dict)
    unread: int = 0


def gather(exchanges: Iterable[Exchange], workflow_type: str) -> Material:
    mine = [e for e in exchanges if e.workflow_type == workflow_type]
    material = Material(workflow_type)
    names = _Names()
    bodies: dict[str, list[bytes]] = {}
    latest: dict[str, int] = {}
    for of_workflow in by_workflow(mine).values():
        material.workflows += 1
        for place, name in enumerate(_follow(of_workflow, material, names, bodies)):
            latest[name] = max(place, latest.get(name, 0))
    # A short workflow leaves stages out, so that a stage's place is the latest that it ever has.
    material.stages = {name: material.stages[name] for name in sorted(latest, key=lambda name: latest[name])}
    for stage in material.stages.values():
        stage.spelling = _spelling_of(bodies[stage.name], [s.body for s in stage.samples])
    return material


def _follow(
    exchanges: list[Exchange], material: Material, names: _Names, bodies: dict[str, list[bytes]]
) -> list[str]:
    """The stages of the workflow, in the order in which they first came."""
    outputs: dict[str, tuple[Known, ...]] = {}
    requests: dict[str, Json] = {}
    previous = ""
    for event in events(exchanges):
        exchange = event.exchange
        try:
            body = parse_body(exchange.body).value
        except InvalidRequest:
            material.unread += not event.answered
            continue
        name = names.of(exchange, body)
        if event.answered:
            if exchange.output is not None:
                outputs = {**outputs, name: (*outputs.get(name, ()), _known(exchange.output))}
            continue
        stage = material.stages.setdefault(name, StageSamples(name, exchange.kind, exchange.target, ""))
        stage.samples.append(
            Sample(exchange.workflow_id, name, body, outputs, requests, previous, exchange.reads)
        )
        bodies.setdefault(name, []).append(exchange.body)
        requests = {**requests, name: body}
        previous = name
    return [*requests]


class _Names:
    """A stage's own name, else its tool's, else one per form of chat request."""

    def __init__(self) -> None:
        self._forms: dict[tuple[str, ...], str] = {}

    def of(self, exchange: Exchange, body: Json) -> str:
        if exchange.stage:
            return exchange.stage
        if exchange.kind is StageKind.TOOL:
            return exchange.target
        form = _form(body)
        return self._forms.setdefault(form, f"stage_{len(self._forms) + 1}")


def _form(body: Json) -> tuple[str, ...]:
    """What requests of one stage share: their members, how the first message begins, the answer's form."""
    if not isinstance(body, dict):
        return ()
    first = answer = ""
    match body.get("messages"):
        case [{"content": str() as text}, *_]:
            first = text[:32]
    match body.get("response_format"):
        case {"json_schema": {"name": str() as name}}:
            answer = name
    return (first, answer, *sorted(body))


def _known(output: Output) -> Known:
    try:
        return Known(output, parse_text(output.text))
    except InvalidRequest:
        return Known(output, None)


def _spelling_of(bodies: list[bytes], values: list[Json]) -> str:
    for name in _SPELLINGS_BY_USE:
        spelled = (spell_json(value, SPELLINGS[name]).encode() for value in values)
        if all(text == body for text, body in zip(spelled, bodies, strict=True)):
            return name
    return ""


def text_spelling(texts: list[str], values: list[Json]) -> str:
    """How JSON that stands in texts is spelled; empty where in no known way."""
    return _spelling_of([text.encode() for text in texts], values)
