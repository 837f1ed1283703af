"""What may be chosen at a request's decision points, for whoever reads along what its answer speaks of."""

from __future__ import annotations

from collections.abc import Iterator

from dynbranch.domain.template import DecisionPoint, Output, Stage, WorkflowContext
from dynbranch.gateway.core.spoken import (
    MenuSpoken,
    RequestSpoken,
    RequestTexts,
    SpokenNames,
)
from dynbranch.gateway.telling import TemplateInForce
from dynbranch.naming.document import Json
from dynbranch.rendering.telling import message_output

MOST_ANSWERS = 32
"""Earlier answers of the conversation that are asked what was chosen before."""

_INSTRUCTIONS = frozenset({"system", "developer"})
"""They say how to answer, with names of forms and tools; what it is about stands in the others."""


def spoken_names(template: TemplateInForce, stage: Stage, body: Json) -> dict[str, SpokenNames]:
    """By decision point. A menu is what this request shows of it."""
    made = {}
    points = template.speaking.get(stage.name, ())
    context = WorkflowContext(template.follower.inputs_in(stage.name, body)) if points else WorkflowContext()
    for point in points:
        menu = template.follower.menu(point, context, body)
        speech = RequestSpoken(RequestTexts(latest_texts(body))) if menu is None else MenuSpoken(menu)
        made[point.name] = SpokenNames(speech, without=_chosen_before(template, point, body))
    return made


def latest_texts(body: Json) -> Iterator[str]:
    """Of a Chat Completions request's messages, the last one first."""
    for message in reversed(_messages(body)):
        if message.get("role") not in _INSTRUCTIONS:
            match message.get("content"):
                case str() as text:
                    yield text
                case list() as parts:
                    yield from (text for part in reversed(parts) if (text := _text_of(part)))


def _text_of(part: Json) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def _messages(body: Json) -> list[dict[str, Json]]:
    messages = body.get("messages") if isinstance(body, dict) else None
    return [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []


def _chosen_before(template: TemplateInForce, point: DecisionPoint, body: Json) -> set[str]:
    """Where nothing is chosen twice: what earlier answers in this request chose."""
    if not point.candidates.unused:
        return set()
    selector = template.follower.selectors[point.name]
    answers = [one for one in _messages(body)[-2 * MOST_ANSWERS :] if one.get("role") == "assistant"]
    chosen: set[str] = set()
    for answer in answers:
        selected = selector.select(_whole(message_output(answer)))
        if isinstance(selected, tuple):
            chosen.update(selected)
    return chosen


def _whole(output: Output) -> Output:
    return Output(output.text, output.calls, output.reasoning, finish="stop")
