"""A learned template as the text of its file, for a person to review."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from dynbranch.domain.template import Origin, StageKind, Where, Window
from dynbranch.rendering.constants import as_constant
from dynbranch.rendering.json_text import SPELLINGS, Spelling, spell_inside, spell_json
from dynbranch.templates.decisions import LearnedPoint
from dynbranch.templates.samples import Material, StageSamples
from dynbranch.templates.shapes import (
    Constant,
    Filled,
    FoundInput,
    Items,
    Members,
    Pieces,
    Rounds,
    Shape,
    Written,
)

_INDENT: Final = " " * 6
_FEW: Final = 3
"""What was seen so seldom may be an accident."""

Outer: TypeAlias = tuple[Spelling, ...]
"""The texts that JSON stands in, the innermost first."""


@dataclass(frozen=True, slots=True)
class Learned:
    material: Material
    shapes: dict[str, Shape]
    reads: dict[str, list[Shape]]
    inputs: list[FoundInput]
    points: list[LearnedPoint]


def write_template(learned: Learned, version: int = 1) -> str:
    return "\n".join(_lines(learned, version)) + "\n"


def _lines(learned: Learned, version: int) -> Iterable[str]:
    material = learned.material
    requests = sum(len(stage.samples) for stage in material.stages.values())
    yield f"# Proposed from {requests} requests of {material.workflows} workflows. Review before use:"
    yield "# what never differed was taken for constant, and no traffic tells whether a stage may run twice."
    if material.unread:
        yield f"# {material.unread} requests were not JSON and are not described."
    yield f"workflow_type: {_scalar(material.workflow_type)}"
    yield f"version: {version}"
    yield ""
    yield from _inputs(learned)
    yield "stages:"
    for name, stage in material.stages.items():
        yield from _stage(learned, name, stage)
    yield from _points(learned)


def _inputs(learned: Learned) -> Iterable[str]:
    menus = {name: where for point in learned.points if point.menu for name, where in (point.menu,)}
    picks = {point.says for point in learned.points if point.window is Window.WAIT}
    found = [one for one in learned.inputs if one.expression.name not in picks]
    if not found and not menus:
        return
    yield "inputs:"
    for one in found:
        yield f"  # {one.distinct} values in {one.seen} requests{_doubt(one.seen)}"
        yield f"  {one.expression.name}: {_where(one.where)}"
    for name, where in menus.items():
        yield f"  {name}: {_where(where)}"
    yield ""


def _stage(learned: Learned, name: str, stage: StageSamples) -> Iterable[str]:
    shape = learned.shapes[name]
    workflows = len({sample.workflow_id for sample in stage.samples})
    chained = [point.name for point in learned.points if name in point.then]
    yield f"  # {len(stage.samples)} requests in {workflows} workflows{_doubt(len(stage.samples))}"
    yield f"  {_scalar(name)}:"
    yield f"    kind: {stage.kind.value}"
    if stage.kind is StageKind.TOOL and stage.target != name:
        yield f"    tool: {_scalar(stage.target)}"
    if stage.repeats:
        yield "    repeats: true"
    yield f"    speculable: {'yes' if chained else 'no'}" + ("  # may it run twice?" if chained else "")
    yield from _reads(learned, name, stage)
    yield "    request: |"
    for line in _request(shape, stage, _said(learned, name)).split("\n"):
        yield _INDENT + line
    yield ""


def _reads(learned: Learned, name: str, stage: StageSamples) -> Iterable[str]:
    if stage.kind is StageKind.TOOL:
        yield "    reads: source"
    elif records := learned.reads.get(name):
        said = _said(learned, name)
        texts = [_record(shape, said) for shape in records]
        yield f"    reads: [{', '.join(_quoted(text) for text in texts)}]"


def _said(learned: Learned, stage: str) -> Callable[[str], str]:
    """How an expression is written in this stage: by the selection, where it is what a point selects."""
    said = {
        point.says: "selection" if stage in point.then else f"selections{_member(point.name)}[-1]"
        for point in learned.points
        if stage in point.then or point.window is Window.WAIT
    }

    def say(expression: str) -> str:
        for selected, name in said.items():
            expression = re.sub(rf"(?<![\w.]){re.escape(selected)}(?![\w.\[])", name, expression)
        return expression

    return say


def _record(shape: Shape, say: Callable[[str], str]) -> str:
    match shape:
        case Constant(str() as text):
            return as_constant(text)
        case Filled(expression):
            return f"{{{{ {say(expression.text)} }}}}"
        case Pieces(parts):
            return "".join(
                as_constant(p) if isinstance(p, str) else f"{{{{ {say(p.expression.text)} }}}}" for p in parts
            )
        case _:
            raise AssertionError("a record is a text")


def _points(learned: Learned) -> Iterable[str]:
    if not learned.points:
        return
    yield "decision_points:"
    for point in learned.points:
        yield f"  # {point.distinct} selections in {point.seen} decisions{_doubt(point.seen)}"
        yield f"  {_scalar(point.name)}:"
        yield f"    stage: {_scalar(point.stage)}"
        yield f"    window: {point.window.value}"
        yield f"    branch: {'independent' if point.independent else 'exclusive'}"
        yield f"    resolved_by: {_where(point.resolved_by)}"
        moment = "arrival" if point.window is Window.DECODE else "output"
        yield f"    opens: {{{moment}: {_scalar(point.stage)}}}"
        yield "    candidates:"
        if point.offers is not None:
            yield f"      menu: {_where(point.offers)}"
        texts = [
            found.expression.name
            for found in learned.inputs
            if found.is_text and found.expression.text != point.says
        ]
        if texts:
            yield f"      texts: [{', '.join(f'{{input: {name}}}' for name in texts)}]"
        if point.offers is None:
            yield "      # No menu was found. Name the outputs that candidates stand in, as further texts."
        yield f"      predictors: [{'offer' if point.window is Window.WAIT else 'context'}, history]"
        yield f"    then: [{', '.join(_scalar(stage) for stage in point.then)}]"


def _request(shape: Shape, stage: StageSamples, say: Callable[[str], str]) -> str:
    writer = _Writer(SPELLINGS[stage.spelling or "json_compact"], stage.spelling or "json_compact", say)
    if isinstance(shape, Members) and stage.spelling.startswith("json_compact"):
        return writer.laid_out(shape)
    return writer.value(shape, ())


class _Writer:
    """Shapes to a request's text. ``filter`` is the name of the spelling."""

    def __init__(self, spelling: Spelling, filter: str, say: Callable[[str], str]) -> None:
        self._spelling = spelling
        self._filter = filter
        self._say = say

    def laid_out(self, shape: Members) -> str:
        """One member a line, one message a line."""
        lines = []
        for key, inner in shape.items:
            begin = f"{spell_json(key, self._spelling)}:"
            match inner:
                case Items(items) if key == "messages":
                    messages = ",\n  ".join(self.value(item, ()) for item in items)
                    lines.append(f"{begin}[\n  {messages}\n]")
                case Rounds() if key == "messages":
                    lines.append(f"{begin}[\n  {self._rounds(inner, (), newline=chr(10) + '  ')}\n]")
                case _:
                    lines.append(begin + self.value(inner, ()))
        return "{" + ",\n".join(lines) + "}"

    def value(self, shape: Shape, outer: Outer) -> str:
        comma, colon = self._fixed(self._spelling.comma, outer), self._spelling.colon
        match shape:
            case Constant(value):
                return self._fixed(spell_json(value, self._spelling), outer)
            case Filled(expression):
                return self._slot(f"{self._say(expression.text)} | {self._filter}", outer)
            case Members(items):
                written = comma.join(
                    self._fixed(spell_json(key, self._spelling) + colon, outer) + self.value(inner, outer)
                    for key, inner in items
                )
                return "{" + written + "}"
            case Items(items):
                return "[" + comma.join(self.value(item, outer) for item in items) + "]"
            case Rounds():
                return "[" + self._rounds(shape, outer) + "]"
            case Pieces(parts):
                quote = self._fixed('"', outer)
                within = (self._spelling, *outer)
                written = _joined(
                    [
                        self._fixed(part, within)
                        if isinstance(part, str)
                        else self._slot(self._say(part.expression.text), within)
                        for part in parts
                    ]
                )
                return quote + written + quote
            case Written(inner, spelling):
                quote = self._fixed('"', outer)
                writer = _Writer(SPELLINGS[spelling], spelling, self._say)
                return quote + writer.value(inner, (self._spelling, *outer)) + quote

    def _rounds(self, shape: Rounds, outer: Outer, newline: str = "") -> str:
        comma = self._fixed(self._spelling.comma, outer)
        head = [self.value(item, outer) for item in shape.head]
        body = (comma + newline).join(self.value(item, outer) for item in shape.body)
        tail = [self.value(item, outer) for item in shape.tail]
        counted = f"outputs{_member(shape.stage)} | length"
        loop = f"{{%- for step in range({counted}) -%}}"
        if head:
            rounds = f"{newline}{loop}{newline}{comma}{body}{newline}{{%- endfor -%}}"
            written = (comma + newline).join(head) + rounds
            return written + "".join(newline + comma + item for item in tail)
        if tail:
            return f"{loop}{body}{comma}{{%- endfor -%}}" + (comma + newline).join(tail)
        return f"{loop}{body}{{% if not loop.last %}}{comma}{{% endif %}}{{%- endfor -%}}"

    def _fixed(self, text: str, outer: Outer) -> str:
        for spelling in outer:
            text = spell_inside(text, ascii=spelling.ascii)
        return as_constant(text)

    def _slot(self, expression: str, outer: Outer) -> str:
        filters = "".join(f" | {'in_json_ascii' if spelling.ascii else 'in_json'}" for spelling in outer)
        return f"{{{{ {expression}{filters} }}}}"


def _joined(parts: Sequence[str]) -> str:
    """A constant that ends in a brace would open a mark with the slot that follows."""
    written = ""
    for part in parts:
        if written.endswith("{") and part.startswith("{"):
            written = written[:-1] + "{{ '{' }}"
        written += part
    return written


def _member(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"['{name}']"


def _where(where: Where) -> str:
    origin = {Origin.INPUT: "input", Origin.REQUEST: "request", Origin.OUTPUT: "output"}[where.origin]
    parts = [f"{origin}: {_scalar(where.name)}"]
    if where.path and where.path != "$":
        parts.append(f"path: {_quoted(where.path)}")
    if where.regex:
        parts.append(f"regex: {_quoted(where.regex)}")
    if where.every:
        parts.append("every: true")
    if where.as_json:
        parts.append("json: true")
    return "{" + ", ".join(parts) + "}"


def _doubt(seen: int) -> str:
    return "; so few that it may be an accident" if seen <= _FEW else ""


def _scalar(text: str) -> str:
    return (
        text if re.fullmatch(r"[A-Za-z][\w-]*", text) and text.lower() not in _YAML_WORDS else _quoted(text)
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_YAML_WORDS: Final = frozenset({"yes", "no", "on", "off", "true", "false", "null", "y", "n"})
