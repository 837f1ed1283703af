"""The common shape of a stage's requests: what is constant, what is filled in, and from where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from dynbranch.domain.template import Origin, Where
from dynbranch.naming.document import Json
from dynbranch.rendering.json_path import Index, Key, Step, spell
from dynbranch.rendering.json_text import COMPACT, spell_json
from dynbranch.rendering.locating import Locator
from dynbranch.templates.samples import Sample, text_spelling
from dynbranch.templates.sources import (
    Expression,
    FromInput,
    Lines,
    Missing,
    parsed,
    proposals,
    same,
    text_proposals,
)

MIN_AFFIX_LETTERS: Final = 4
"""A beginning or end that all values share is taken for constant text if it has so many letters."""

MIN_ALONE_CHARACTERS: Final = 8
"""Of one workflow nothing tells what is constant: there a text so long is believed to come from elsewhere if
it stands elsewhere."""

MAX_PERIOD: Final = 4
"""Messages that one round of a loop adds, at most."""

_LISTED: Final = (("- ", r"^- (.*)$"), ("* ", r"^\* (.*)$"))
_JSON_LINE: Final = r"^\{.*\}$"

Pair: TypeAlias = tuple[Sample, Json]


@dataclass(frozen=True, slots=True)
class Constant:
    value: Json


@dataclass(frozen=True, slots=True)
class Members:
    items: tuple[tuple[str, Shape], ...]


@dataclass(frozen=True, slots=True)
class Items:
    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """A list whose middle repeats once for every output of ``stage``."""

    head: tuple[Shape, ...]
    body: tuple[Shape, ...]
    tail: tuple[Shape, ...]
    stage: str


@dataclass(frozen=True, slots=True)
class Filled:
    """``expression`` writes the whole value; ``distinct`` values were seen in ``seen`` requests."""

    expression: Expression
    seen: int
    distinct: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text of constants and slots."""

    parts: tuple[str | Filled, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """JSON inside a text."""

    shape: Shape
    spelling: str


Shape: TypeAlias = "Constant | Members | Items | Rounds | Filled | Pieces | Written"


@dataclass(frozen=True, slots=True)
class FoundInput:
    """A value that comes from nowhere before. ``seen`` and ``distinct`` count its values; ``is_text``: they
    are texts."""

    expression: FromInput
    where: Where
    seen: int
    distinct: int
    is_text: bool


class Generaliser:
    """One workflow type's. ``inputs`` grows as values turn up that nothing known explains."""

    def __init__(self) -> None:
        self.inputs: list[FoundInput] = []
        self._taken: set[str] = set()

    def shape(self, stage: str, pairs: list[Pair]) -> Shape:
        """Of whole bodies."""
        return self._shape(stage, pairs, ())

    def text(self, stage: str, pairs: list[tuple[Sample, str]]) -> Shape | None:
        """Of texts that are not in a request, so that no input can be read from them."""
        first = pairs[0][1]
        unchanged = all(text == first for _, text in pairs)
        if unchanged and not _alone([*pairs]):
            return Constant(first)
        return self._whole([*pairs]) or self._pieces([*pairs]) or (Constant(first) if unchanged else None)

    def _shape(self, stage: str, pairs: list[Pair], path: tuple[Step, ...]) -> Shape:
        first = pairs[0][1]
        unchanged = all(same(first, value) for _, value in pairs)
        if unchanged and not (_alone(pairs) and _long(first)):
            return Constant(first)
        whole = self._whole(pairs)
        if whole is not None:
            return whole
        if unchanged and isinstance(first, str):
            return self._pieces(pairs) or Constant(first)
        match first:
            case dict() if all(isinstance(v, dict) and [*v] == [*first] for _, v in pairs):
                return Members(
                    tuple((key, self._shape(stage, _members(pairs, key), (*path, Key(key)))) for key in first)
                )
            case list() if all(isinstance(v, list) and v for _, v in pairs):
                return self._list(stage, [(s, v) for s, v in pairs if isinstance(v, list)], path)
            case str() if all(isinstance(v, str) for _, v in pairs):
                return self._text(stage, [(s, v) for s, v in pairs if isinstance(v, str)], path)
            case _:
                return self._unknown(stage, pairs, path)

    def _whole(self, pairs: list[Pair]) -> Filled | None:
        """The expression that is every value, if one is."""
        # The sample that knows least proposes least, but only one that knows much has seen all there is.
        known = [sum(map(len, sample.outputs.values())) for sample, _ in pairs]
        fitting: list[Expression] = []
        for proposer in dict.fromkeys((known.index(min(known)), known.index(max(known)))):
            sample, value = pairs[proposer]
            fitting += [
                e
                for e in proposals(sample, [found.expression for found in self.inputs])
                if same(e.value(sample), value) and all(same(e.value(s), v) for s, v in pairs)
            ]
            if fitting:
                break
        best = min(fitting, key=lambda e: e.rank, default=None)
        return None if best is None else Filled(best, len(pairs), _distinct(pairs))

    def _list(self, stage: str, pairs: list[tuple[Sample, list[Json]]], path: tuple[Step, ...]) -> Shape:
        lengths = {len(value) for _, value in pairs}
        if len(lengths) == 1:
            return Items(
                tuple(
                    self._shape(stage, [(s, v[place]) for s, v in pairs], (*path, Index(place)))
                    for place in range(lengths.pop())
                )
            )
        for over, period, fixed in _rounds(pairs):
            for tail in range(fixed + 1):
                before, taken = len(self.inputs), set(self._taken)
                found = self._round_shapes(stage, pairs, path, over, period, fixed - tail, tail)
                if found is not None:
                    return found
                # What was taken for an input on a wrong guess is none.
                del self.inputs[before:]
                self._taken = taken
        return self._unknown(stage, [(s, v) for s, v in pairs], path)

    def _round_shapes(
        self,
        stage: str,
        pairs: list[tuple[Sample, list[Json]]],
        path: tuple[Step, ...],
        over: str,
        period: int,
        head: int,
        tail: int,
    ) -> Rounds | None:
        def each(offset: int) -> list[Pair]:
            return [
                (s.at(step), v[head + step * period + offset])
                for s, v in pairs
                for step in range((len(v) - head - tail) // period)
            ]

        before = len(self.inputs)
        heads = tuple(
            self._shape(stage, [(s, v[i]) for s, v in pairs], (*path, Index(i))) for i in range(head)
        )
        inputs_of_head = len(self.inputs)
        # An index within a round means nothing to a path, so a round may hold no input of its own.
        body = tuple(
            self._shape(stage, each(offset), (*path, Index(head + offset))) for offset in range(period)
        )
        if len(self.inputs) > inputs_of_head:
            del self.inputs[before:]
            return None
        tails = tuple(
            self._shape(stage, [(s, v[i - tail]) for s, v in pairs], (*path, Index(i - tail)))
            for i in range(tail)
        )
        return Rounds(heads, body, tails, over)

    def _text(self, stage: str, pairs: list[tuple[Sample, str]], path: tuple[Step, ...]) -> Shape:
        values = [parsed(text) for _, text in pairs]
        if all(value is not None for value in values):
            spelling = text_spelling([text for _, text in pairs], [*values])
            if spelling:
                inner: list[Pair] = [(s, v) for (s, _), v in zip(pairs, values, strict=True)]
                return Written(self._shape(stage, inner, path), spelling)
        pieces = self._pieces([*pairs])
        if pieces is not None:
            return pieces
        begin, end = _affixes([text for _, text in pairs])
        middles: list[Pair] = [(s, text[len(begin) : len(text) - len(end)]) for s, text in pairs]
        if not begin and not end:
            return self._unknown(stage, middles, path)
        middle = self._listed(stage, middles, path, begin, end)
        return Pieces(tuple(part for part in (begin, middle, end) if part))

    def _pieces(self, pairs: list[Pair]) -> Pieces | None:
        """From left to right: constant text, then the slot that comes soonest in all of them."""
        texts = [str(value) for _, value in pairs]
        samples = [sample for sample, _ in pairs]
        places = [0] * len(pairs)
        parts: list[str | Filled] = []
        sample = samples[0]
        alone = _alone(pairs)
        usable = [
            (e, values)
            for e in text_proposals(sample, [found.expression for found in self.inputs])
            if (values := _texts_of(e, samples)) is not None
            and (len(values[0]) >= MIN_ALONE_CHARACTERS if alone else len(set(values)) > 1)
        ]
        while True:
            rests = [text[place:] for text, place in zip(texts, places, strict=True)]
            best = _soonest(usable, rests)
            if all(rest == rests[0] for rest in rests) and not (alone and best):
                parts += [rests[0]] if rests[0] else []
                return Pieces(tuple(parts)) if any(isinstance(p, Filled) for p in parts) else None
            if best is None:
                return None
            constant, expression, values = best
            parts += [constant] if constant else []
            parts.append(Filled(expression, len(pairs), len(set(values))))
            places = [p + len(constant) + len(v) for p, v in zip(places, values, strict=True)]

    def _listed(
        self, stage: str, middles: list[Pair], path: tuple[Step, ...], begin: str, end: str
    ) -> Filled:
        """An input within a text; one item a line, where every line looks like one."""
        for mark, regex, as_json in (("", _JSON_LINE, True), *((m, r, False) for m, r in _LISTED)):
            expression = self._new_input(stage, path, regex, every=True, as_json=as_json, pairs=middles)
            lines = Lines(expression, mark, "json_compact" if as_json else "")
            if all(same(lines.value(s), v) for s, v in middles):
                return Filled(lines, len(middles), _distinct(middles))
            self._forget(expression)
        regex = f"(?s)\\A{_escaped(begin)}(.*){_escaped(end)}\\z"
        expression = self._new_input(stage, path, regex, every=False, as_json=False, pairs=middles)
        return Filled(expression, len(middles), _distinct(middles))

    def _unknown(self, stage: str, pairs: list[Pair], path: tuple[Step, ...]) -> Filled:
        expression = self._new_input(stage, path, "", every=False, as_json=False, pairs=pairs)
        return Filled(expression, len(pairs), _distinct(pairs))

    def _new_input(
        self,
        stage: str,
        path: tuple[Step, ...],
        regex: str,
        *,
        every: bool,
        as_json: bool,
        pairs: list[Pair],
    ) -> FromInput:
        name = self._free_name(_input_name(path, pairs[0][0].body) + ("_lines" if every else ""))
        where = Where(Origin.REQUEST, stage, spell(path), regex, every, as_json)
        expression = FromInput(name, Locator(where))
        is_text = not every and all(isinstance(value, str) for _, value in pairs)
        self.inputs.append(FoundInput(expression, where, len(pairs), _distinct(pairs), is_text))
        return expression

    def _forget(self, expression: FromInput) -> None:
        self.inputs = [found for found in self.inputs if found.expression is not expression]
        self._taken.discard(expression.name)

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def _alone(pairs: list[Pair]) -> bool:
    return len({sample.workflow_id for sample, _ in pairs}) == 1


def _long(value: Json) -> bool:
    return isinstance(value, dict | list) or (isinstance(value, str) and len(value) >= MIN_ALONE_CHARACTERS)


def _members(pairs: list[Pair], key: str) -> list[Pair]:
    return [(sample, value[key]) for sample, value in pairs if isinstance(value, dict)]


def _rounds(pairs: list[tuple[Sample, list[Json]]]) -> Iterator[tuple[str, int, int]]:
    """Stages whose count of outputs explains the lengths: (stage, items a round, items beside them).

    Of several the one that ran last counts: a round is complete when it has.
    """
    stages = [*reversed(dict.fromkeys(stage for sample, _ in pairs for stage in sample.outputs))]
    for period in range(1, MAX_PERIOD + 1):
        for stage in stages:
            fixed = {len(value) - period * len(sample.outputs.get(stage, ())) for sample, value in pairs}
            if len(fixed) == 1 and min(fixed) >= 0:
                yield stage, period, fixed.pop()


def _soonest(
    usable: list[tuple[Expression, list[str]]], rests: list[str]
) -> tuple[str, Expression, list[str]] | None:
    """Where a slot begins after the same constant in all of them; of those that begin there, the longest."""
    found: list[tuple[int, int, int, str, Expression, list[str]]] = []
    for expression, values in usable:
        place = rests[0].find(values[0]) if values[0] else -1
        if place < 0:
            continue
        constant = rests[0][:place]
        if all(rest.startswith(constant + value) for rest, value in zip(rests, values, strict=True)):
            found.append((place, -len(values[0]), expression.rank, constant, expression, values))
    if not found:
        return None
    *_, constant, expression, values = min(found, key=lambda one: one[:3])
    return constant, expression, values


def _texts_of(expression: Expression, samples: Sequence[Sample]) -> list[str] | None:
    values: list[str] = []
    for sample in samples:
        value = expression.value(sample)
        if isinstance(value, Missing) or not isinstance(value, str):
            return None
        values.append(value)
    return values


def _affixes(texts: list[str]) -> tuple[str, str]:
    """What all begin and end with, cut back to whole words, and to whole lines where there are lines."""
    begin = _whole_words(_beginning(texts))
    rests = [text[len(begin) :] for text in texts]
    end = _whole_words(_beginning([rest[::-1] for rest in rests]))[::-1]
    return _worth(begin), _worth(end)


def _beginning(texts: list[str]) -> str:
    """What all begin with: the first and the last in order differ soonest."""
    first, last = min(texts), max(texts)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def _whole_words(text: str) -> str:
    if "\n" in text:
        return text[: text.rindex("\n") + 1]
    return re.sub(r"[\w\"'{\[]*\Z", "", text)


def _worth(text: str) -> str:
    """Words, not the beginning of some kind of name."""
    return text if any(map(str.isspace, text)) and sum(map(str.isalpha, text)) >= MIN_AFFIX_LETTERS else ""


def _escaped(text: str) -> str:
    return re.escape(text).replace("\\\n", "\\n").replace("\\ ", " ")


def _distinct(pairs: list[Pair]) -> int:
    return len({spell_json(value, COMPACT) for _, value in pairs})


def _input_name(path: tuple[Step, ...], body: Json) -> str:
    """After the message's role, or the last member of the path."""
    match path, body:
        case (Key("messages"), Index(place), *_), {"messages": list() as messages} if place < len(messages):
            match messages[place]:
                case {"role": str() as role} if role.isidentifier():
                    return role
    keys = [step.name for step in path if isinstance(step, Key) and step.name.isidentifier()]
    return keys[-1] if keys and keys[-1] not in ("index", "output", "outputs", "selection") else "value"
