"""What predictors are asked, read out of a workflow's context by its template."""

from __future__ import annotations

from collections.abc import Iterator

from dynbranch.controller.core.branches.messages import Propose
from dynbranch.controller.core.predictors.port import Candidate, Coordinate, Question, Text, TextKind
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.template import DecisionPoint, Origin, StageKind, Template, Where, WorkflowContext
from dynbranch.naming.document import Json, parse_text
from dynbranch.rendering.following import Follower
from dynbranch.rendering.locating import Locator, scalar_text

MAX_ABOUT_CHARACTERS = 2000


def question_of(ask: Propose, follower: Follower) -> Question:
    point, context = ask.point, ask.context
    offered = follower.offered(point, context)
    picked = tuple(selection for chosen in context.selections.get(point.name, ()) for selection in chosen)
    candidates = None
    if offered.menu is not None:
        candidates = tuple(Candidate(item, _about(point, context, item)) for item in offered.menu)
    texts = sorted(_texts(ask.template, point, context), key=lambda text: _READING_ORDER[text.kind])
    if candidates is None and picked:
        # In an open vocabulary the last name that was looked up says what the workflow is after.
        place = sum(text.kind is TextKind.ASKED for text in texts)
        texts.insert(place, Text(TextKind.STEP, picked[-1]))
    return Question(
        coordinate=Coordinate(
            ask.workflow.tenant, ask.workflow.workflow_type_id, point.name, ask.sharing_group
        ),
        candidates=candidates,
        texts=tuple(texts),
        picked=picked,
        trail=ask.trail,
        at_most=point.candidates.at_most,
    )


_READING_ORDER = {TextKind.ASKED: 0, TextKind.STEP: 1, TextKind.OUTPUT: 2, TextKind.READ: 3}


def _texts(template: Template, point: DecisionPoint, context: WorkflowContext) -> Iterator[Text]:
    for where in point.candidates.texts:
        kind, title = _kind(template, where), _title(where, context)
        for value in Locator(where).in_context(context):
            body = scalar_text(value)
            if body is not None:
                yield Text(kind, body, title)


def _kind(template: Template, where: Where) -> TextKind:
    match where.origin:
        case Origin.INPUT | Origin.REQUEST:
            return TextKind.ASKED
        case Origin.OUTPUT:
            read = template.stage(where.name).kind is StageKind.TOOL
            return TextKind.READ if read else TextKind.OUTPUT


def _title(where: Where, context: WorkflowContext) -> str:
    """What a tool calls the text that it gave."""
    outputs = context.outputs.get(where.name, ()) if where.origin is Origin.OUTPUT else ()
    if not outputs:
        return ""
    match _parsed(outputs[-1].text):
        case {"title": str() as title}:
            return title
        case _:
            return ""


def _parsed(text: str) -> Json:
    try:
        return parse_text(text)
    except InvalidRequest:
        return None


def _about(point: DecisionPoint, context: WorkflowContext, item: str) -> str:
    """What stands beside an item of the menu: a function's description, the names of its parameters."""
    menu = point.candidates.menu
    if menu is None or menu.origin is not Origin.INPUT:
        return ""
    offered = context.inputs.get(menu.name)
    for one in offered if isinstance(offered, list) else ():
        if isinstance(one, dict) and item in one.values():
            words = [text for key, value in one.items() if value != item for text in _words(key, value)]
            return "\n".join(words)[:MAX_ABOUT_CHARACTERS]
    return ""


_FORM = frozenset({"type", "required", "properties", "items", "enum", "additionalProperties", "parameters"})
"""How a schema is written says nothing of what it is for."""


def _words(key: str, value: Json) -> Iterator[str]:
    if key not in _FORM and key not in ("description", "name"):
        yield key
    match value:
        case str() if key != "type":
            yield value
        case dict():
            for name, inner in value.items():
                yield from _words(name, inner)
        case list() if key != "required":
            for inner in value:
                yield from _words("items", inner)
