"""Where a value of a request may have come from: expressions over what was known before it.

An expression is proposed where it fits one request, and kept where it fits all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import Json, Number, parse_text
from dynbranch.rendering.json_path import Index, Key, Step, values_at
from dynbranch.rendering.json_text import COMPACT, SPELLINGS, spell_json
from dynbranch.rendering.locating import Locator
from dynbranch.templates.samples import Known, Sample

MAX_PLACES: Final = 300
"""Places of one JSON value that are looked at."""


class Missing:
    """There is no such value in this sample."""


MISSING: Final = Missing()


class Expression(Protocol):
    """``text`` is how a request's text says it; ``rank``: the lower, the sooner it is believed."""

    @property
    def text(self) -> str: ...
    @property
    def rank(self) -> int: ...
    def value(self, sample: Sample) -> Json | Missing: ...
    def stages(self) -> tuple[str, ...]:
        """Whose outputs it takes."""
        ...


@dataclass(frozen=True, slots=True)
class FromInput:
    """An input that was found, or a part of it."""

    name: str
    locator: Locator
    steps: tuple[Step, ...] = ()

    @property
    def text(self) -> str:
        return self.name + _access(self.steps)

    @property
    def rank(self) -> int:
        return 2 + len(self.steps)

    def value(self, sample: Sample) -> Json | Missing:
        where = self.locator.where
        body = sample.body if where.name == sample.stage else sample.requests.get(where.name)
        if body is None:
            return MISSING
        found = self.locator.in_json(body)
        value: Json = found if where.every else found[0] if found else None
        if not found:
            return MISSING
        return _one(values_at(value, self.steps)) if self.steps else value

    def stages(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class FromOutput:
    """The last output of a stage, or the one of a loop's round; its text, or a place in its JSON."""

    stage: str
    steps: tuple[Step, ...] | None = None
    looped: bool = False

    @property
    def text(self) -> str:
        base = f"outputs{_access((Key(self.stage),))}[step]" if self.looped else _last(self.stage)
        return f"{base}.text" if self.steps is None else f"{base}.json{_access(self.steps)}"

    @property
    def rank(self) -> int:
        return (0 if self.looped else 1) + (0 if self.steps is None else 1 + len(self.steps))

    def value(self, sample: Sample) -> Json | Missing:
        known = self._known(sample)
        if known is None:
            return MISSING
        if self.steps is None:
            return known.output.text
        return _one(values_at(known.parsed, self.steps))

    def stages(self) -> tuple[str, ...]:
        return (self.stage,)

    def _known(self, sample: Sample) -> Known | None:
        outputs = sample.outputs.get(self.stage, ())
        if not self.looped:
            return outputs[-1] if outputs else None
        return outputs[sample.step] if sample.step is not None and sample.step < len(outputs) else None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The item of a list whose member ``key`` says what ``by`` says."""

    items: FromInput
    key: str
    by: FromOutput | FromInput
    steps: tuple[Step, ...] = ()

    @property
    def text(self) -> str:
        found = f"({self.items.text} | selectattr('{self.key}', 'equalto', {self.by.text}) | first)"
        return found + _access(self.steps)

    @property
    def rank(self) -> int:
        return 6 + len(self.steps)

    def value(self, sample: Sample) -> Json | Missing:
        items, wanted = self.items.value(sample), self.by.value(sample)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get(self.key) == wanted:
                return _one(values_at(item, self.steps)) if self.steps else item
        return MISSING

    def stages(self) -> tuple[str, ...]:
        return self.by.stages()


@dataclass(frozen=True, slots=True)
class MemberOfEach:
    """One member of every item of a list."""

    items: FromInput
    key: str

    @property
    def text(self) -> str:
        return f"({self.items.text} | map(attribute='{self.key}') | list)"

    @property
    def rank(self) -> int:
        return 5

    def value(self, sample: Sample) -> Json | Missing:
        items = self.items.value(sample)
        if not isinstance(items, list):
            return MISSING
        found = [item[self.key] for item in items if isinstance(item, dict) and self.key in item]
        return found if len(found) == len(items) else MISSING

    def stages(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Unused:
    """What is left of a list when the outputs of a stage have each taken one."""

    each: MemberOfEach | FromInput
    stage: str
    steps: tuple[Key, ...]

    @property
    def text(self) -> str:
        path = "".join(f".{step.name}" for step in self.steps)
        taken = f"outputs{_access((Key(self.stage),))} | map(attribute='json{path}') | list"
        return f"({self.each.text} | reject('in', {taken}) | list)"

    @property
    def rank(self) -> int:
        return 7 + len(self.steps)

    def value(self, sample: Sample) -> Json | Missing:
        items = self.each.value(sample)
        if not isinstance(items, list):
            return MISSING
        outputs = sample.outputs.get(self.stage, ())
        taken = [_one(values_at(known.parsed, self.steps)) for known in outputs]
        return [item for item in items if not any(same(item, one) for one in taken)]

    def stages(self) -> tuple[str, ...]:
        return (self.stage,)


@dataclass(frozen=True, slots=True)
class Lines:
    """The items of a list, each on a line of its own: as JSON, or after a mark."""

    items: FromInput
    mark: str
    spelling: str

    @property
    def text(self) -> str:
        if self.spelling:
            return f"({self.items.text} | map('{self.spelling}') | join('\\n'))"
        return f"('{self.mark}' ~ ({self.items.text} | join('\\n{self.mark}')))"

    @property
    def rank(self) -> int:
        return 3

    def value(self, sample: Sample) -> Json | Missing:
        items = self.items.value(sample)
        if not isinstance(items, list):
            return MISSING
        if self.spelling:
            return "\n".join(spell_json(item, SPELLINGS[self.spelling]) for item in items)
        if not all(isinstance(item, str) for item in items):
            return MISSING
        return "\n".join(f"{self.mark}{item}" for item in items)

    def stages(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Spelled:
    """A value written as JSON into a text."""

    of: FromInput | FromOutput | Chosen
    spelling: str

    @property
    def text(self) -> str:
        return f"({self.of.text} | {self.spelling})"

    @property
    def rank(self) -> int:
        return 1 + self.of.rank

    def value(self, sample: Sample) -> Json | Missing:
        value = self.of.value(sample)
        return MISSING if isinstance(value, Missing) else spell_json(value, SPELLINGS[self.spelling])

    def stages(self) -> tuple[str, ...]:
        return self.of.stages()


def proposals(sample: Sample, inputs: list[FromInput]) -> Iterator[Expression]:
    """Everything that could be said of what this sample knows."""
    outputs = [*_from_outputs(sample)]
    yield from outputs
    yield from inputs
    for item in inputs:
        value = item.value(sample)
        if isinstance(value, dict):
            yield from (FromInput(item.name, item.locator, steps) for steps, _ in places(value) if steps)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            members = [MemberOfEach(item, key) for key in value[0]]
            yield from members
            yield from (left for each in members for left in _unused(each, outputs))
            yield from _chosen(item, value, sample, [*outputs, *inputs])
        elif isinstance(value, list):
            yield from _unused(item, outputs)


def text_proposals(sample: Sample, inputs: list[FromInput]) -> Iterator[Expression]:
    """What may stand within a text: texts, and JSON written out."""
    for expression in proposals(sample, inputs):
        value = expression.value(sample)
        if isinstance(value, str):
            yield expression
        elif isinstance(value, dict | list) and isinstance(expression, FromInput | FromOutput | Chosen):
            yield from (Spelled(expression, spelling) for spelling in ("json_compact", "json"))


def same(value: Json | Missing, other: Json | Missing) -> bool:
    """Equal as they are written: key order and the spelling of numbers count."""
    if isinstance(value, Missing) or isinstance(other, Missing):
        return False
    if isinstance(value, str) and isinstance(other, str):
        return value == other
    return type(value) is type(other) and spell_json(value, COMPACT) == spell_json(other, COMPACT)


def places(value: Json, steps: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], Json]]:
    """Every place of a value, the outermost first."""
    waiting = [(steps, value)]
    for seen, (here, item) in enumerate(waiting):
        if seen >= MAX_PLACES:
            return
        yield here, item
        if isinstance(item, dict):
            waiting += [((*here, Key(key)), inner) for key, inner in item.items()]
        elif isinstance(item, list):
            waiting += [((*here, Index(place)), inner) for place, inner in enumerate(item)]


def parsed(text: str) -> dict[str, Json] | list[Json] | None:
    """An object or a list that a text holds, else None."""
    if text[:1] not in ("{", "["):
        return None
    try:
        value = parse_text(text)
    except InvalidRequest:
        return None
    return value if isinstance(value, dict | list) else None


def _from_outputs(sample: Sample) -> Iterator[FromOutput]:
    for stage, outputs in sample.outputs.items():
        looped = sample.step is not None
        rounds = [(outputs[-1], False)]
        if looped and sample.step is not None and sample.step < len(outputs):
            rounds.insert(0, (outputs[sample.step], True))
        for known, in_loop in rounds:
            yield FromOutput(stage, None, in_loop)
            if isinstance(known.parsed, dict | list):
                yield from (FromOutput(stage, steps, in_loop) for steps, _ in places(known.parsed) if steps)


def _chosen(
    items: FromInput, value: list[Any], sample: Sample, scalars: list[FromOutput | FromInput]
) -> Iterator[Chosen]:
    for key, member in value[0].items():
        if not isinstance(member, str | Number):
            continue
        by_value = {str(item.get(key)): item for item in value if isinstance(item, dict)}
        for by in scalars:
            wanted = by.value(sample)
            if isinstance(wanted, str | Number) and str(wanted) in by_value and by is not items:
                yield Chosen(items, key, by)
                yield from (Chosen(items, key, by, (Key(inner),)) for inner in by_value[str(wanted)])


def _unused(each: MemberOfEach | FromInput, outputs: list[FromOutput]) -> Iterator[Unused]:
    for output in outputs:
        steps = output.steps or ()
        names = tuple(step for step in steps if isinstance(step, Key) and step.name.isidentifier())
        if not output.looped and names and len(names) == len(steps):
            yield Unused(each, output.stage, names)


def _one(values: list[Json]) -> Json | Missing:
    return values[0] if len(values) == 1 else MISSING


def _last(stage: str) -> str:
    return f"output{_access((Key(stage),))}"


def _access(steps: tuple[Step, ...]) -> str:
    parts = []
    for step in steps:
        match step:
            case Key(name) if name.isidentifier():
                parts.append(f".{name}")
            case Key(name):
                escaped = name.replace("\\", "\\\\").replace("'", "\\'")
                parts.append(f"['{escaped}']")
            case Index(place):
                parts.append(f"[{place}]")
            case _:
                raise AssertionError(f"not a place: {step}")
    return "".join(parts)
