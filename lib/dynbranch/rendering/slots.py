"""Which part of a rendered request came out of which slot: for people who look for a difference."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from dynbranch.domain.template import Template, WorkflowContext
from dynbranch.rendering.constants import taken_apart
from dynbranch.rendering.jinja import JinjaRenderer

# Control characters never stand in JSON as they are, so they mark where a slot begins and ends.
_BEGIN: Final = "\x02"
_NUMBERED: Final = "\x03"
_END: Final = "\x04"
_MARK = re.compile(f"{_BEGIN}(\\d+){_NUMBERED}|{_END}")
_VARIABLE = re.compile(r"\{\{(-?)(.*?)(-?)\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Slot:
    """Characters ``begin`` to ``end`` of a body were written by ``expression``."""

    begin: int
    end: int
    expression: str


class SlotRenderer:
    """Renders as the JinjaRenderer of the same template does, and tells the slots."""

    def __init__(self, template: Template) -> None:
        self._expressions: list[str] = []
        stages = tuple(replace(s, request=self._marked(s.request)) for s in template.stages)
        self._renderer = JinjaRenderer(replace(template, stages=stages))

    def slots(self, stage: str, context: WorkflowContext, selection: str | None = None) -> list[Slot]:
        """Raises RenderFailed."""
        marked = self._renderer.render(stage, context, selection).decode()
        slots: list[Slot] = []
        open_slots: list[tuple[int, int]] = []
        length = last = 0
        for match in _MARK.finditer(marked):
            length += match.start() - last
            last = match.end()
            if match[1] is not None:
                open_slots.append((length, int(match[1])))
            elif open_slots:
                begin, number = open_slots.pop()
                slots.append(Slot(begin, length, self._expressions[number]))
        return slots

    def _marked(self, request: str) -> str:
        parts: list[Any] = [*taken_apart(request)]
        return "".join(
            self._mark(part) if place % 2 and part.startswith("{{") else part
            for place, part in enumerate(parts)
        )

    def _mark(self, tag: str) -> str:
        match = _VARIABLE.fullmatch(tag)
        if match is None:
            return tag
        number = len(self._expressions)
        self._expressions.append(" ".join(match[2].split()))
        return (
            "{{" + match[1] + f' "{_BEGIN}{number}{_NUMBERED}" }}}}'
            "{{" + match[2] + "}}"
            '{{ "' + _END + '" ' + match[3] + "}}"
        )
