"""Finding the values that a ``Where`` describes. Compiled once, cheap to run on whatever passes by."""

from __future__ import annotations

from collections.abc import Iterator

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.template import Origin, Output, OutputPart, Where, WorkflowContext
from dynbranch.naming.document import Json, Number, parse_text
from dynbranch.rendering.json_path import parse_path, values_at
from dynbranch.rendering.patterns import Pattern


class Locator:
    """Raises BadPath or ValueError for a ``Where`` that can not be used."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.steps = parse_path(where.path) if where.path else None
        self.regex = Pattern(where.regex) if where.regex else None

    def in_json(self, value: Json) -> list[Json]:
        found = values_at(value, self.steps) if self.steps is not None else [value]
        return self._refined(found)

    def in_text(self, text: str) -> list[Json]:
        return self.in_json(text)

    def in_output(self, output: Output) -> list[Json]:
        match self.where.part:
            case OutputPart.TEXT:
                return self.in_text(output.text)
            case OutputPart.CALL_NAME:
                return self._refined([call.name for call in output.calls])
            case OutputPart.CALL_ARGUMENTS:
                wanted = self.where.call
                calls = [call for call in output.calls if not wanted or call.name == wanted]
                return [value for call in calls for value in self.in_text(call.arguments)]

    def in_context(self, context: WorkflowContext, request: Json = None) -> list[Json]:
        """``request``: the body that arrives now, for what stands in a request."""
        match self.where.origin:
            case Origin.INPUT:
                name = self.where.name
                return self.in_json(context.inputs[name]) if name in context.inputs else []
            case Origin.OUTPUT:
                outputs = context.outputs.get(self.where.name, ())
                return self.in_output(outputs[-1]) if outputs else []
            case Origin.REQUEST:
                return self.in_json(request)

    def _refined(self, found: list[Json]) -> list[Json]:
        if self.regex is not None:
            found = [text for value in found for text in self._matches(value, self.regex)]
        if self.where.as_json:
            found = [parsed for value in found for parsed in _parsed(value)]
        return found

    def _matches(self, value: Json, regex: Pattern) -> Iterator[str]:
        if isinstance(value, str):
            for found in regex.found(value):
                yield found.value


def scalar_text(value: Json) -> str | None:
    """What a selection is called; None for what can not be one."""
    match value:
        case str():
            return value
        case Number(text):
            return text
        case bool():
            return "true" if value else "false"
        case _:
            return None


def _parsed(value: Json) -> list[Json]:
    if not isinstance(value, str):
        return [value]
    try:
        return [parse_text(value)]
    except InvalidRequest:
        return []
