"""Reading a decision out of an output, whole or half written, or out of the next request."""

from __future__ import annotations

from collections.abc import Iterable

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.template import Ambiguous, Choice, Output, OutputPart, Selected, Where
from dynbranch.naming.document import Json, parse_text
from dynbranch.rendering.json_stream import JsonWatch
from dynbranch.rendering.locating import Locator, scalar_text
from dynbranch.rendering.outputs import Added
from dynbranch.rendering.patterns import Pattern


class Selector:
    """One decision point's. ``several``: a decision may name more than one selection."""

    def __init__(self, where: Where, *, several: bool) -> None:
        self.where = where
        self.several = several
        self.locator = Locator(where)

    def select(self, output: Output) -> Selected:
        """What a complete output decides."""
        if problem := self._unreadable(output):
            return problem
        return self._judged(self.locator.in_output(output))

    def select_request(self, body: Json) -> Selected:
        """What a request decides: a person's pick that it carries."""
        return self._judged(self.locator.in_json(body))

    def visible(self, partial: Output) -> tuple[Choice, ...]:
        """What an output that is being written shows so far."""
        watch = self.watch()
        watch.feed(Added(partial.text, tuple((i, c.name, c.arguments) for i, c in enumerate(partial.calls))))
        return watch.choices

    def watch(self) -> Watch:
        """For one output as it streams."""
        return Watch(self)

    def _unreadable(self, output: Output) -> Ambiguous | None:
        if self.locator.steps is None or self.where.part is not OutputPart.TEXT or not output.text:
            return None
        try:
            parse_text(output.text)
        except InvalidRequest:
            return Ambiguous("the output was cut off" if output.finish == "length" else "not JSON")
        return None

    def _judged(self, found: list[Json]) -> Selected:
        texts = [scalar_text(value) for value in found]
        distinct = tuple(dict.fromkeys(text for text in texts if text is not None))
        if None in texts:
            return Ambiguous("the value is neither a text nor a number")
        if len(distinct) > 1 and not self.several:
            return Ambiguous("more than one selection")
        return distinct or None


class Watch:
    """Follows one output: what was read is not read again."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._part = selector.where.part
        self._texts: dict[int, _TextWatch] = {}
        self._names: dict[int, str] = {}
        self._closed_names: dict[int, Choice] = {}
        self._read = 0

    def feed(self, added: Added) -> tuple[Choice, ...]:
        """Every choice that can be seen now, in the order in which they stand in the output."""
        self._read += len(added.text)
        if self._part is OutputPart.TEXT:
            if added.text:
                self._text(0).feed(added.text)
        else:
            for place, name, arguments in added.calls:
                self._call(place, name, arguments)
        return self.choices

    @property
    def choices(self) -> tuple[Choice, ...]:
        if self._part is OutputPart.CALL_NAME:
            return tuple(self._name_choices())
        found = [choice for _, watch in sorted(self._texts.items()) for choice in watch.choices]
        if not self._selector.several and self._part is OutputPart.TEXT:
            return tuple(found)
        return tuple(Choice(c.value, c.closed, False, c.at) for c in found)

    def _text(self, place: int) -> _TextWatch:
        watch = self._texts.get(place)
        if watch is None:
            watch = self._texts[place] = _TextWatch(self._selector.locator)
        return watch

    def _call(self, place: int, name: str, arguments: str) -> None:
        self._read += len(arguments)
        if self._part is OutputPart.CALL_ARGUMENTS:
            wanted = self._selector.where.call
            if arguments and (not wanted or wanted == name):
                self._text(place).feed(arguments)
            return
        self._names[place] = name
        # A name is whole once its arguments begin, or the next call does.
        whole = [p for p in self._names if p < place] + ([place] if arguments else [])
        for done in whole:
            closed = Choice(self._names[done], closed=True, final=False, at=self._read)
            self._closed_names.setdefault(done, closed)

    def _name_choices(self) -> Iterable[Choice]:
        regex = self._selector.locator.regex
        for place in sorted(self._names):
            choice = self._closed_names.get(place) or Choice(self._names[place], False, False, self._read)
            if regex is None or regex.first(choice.value):
                yield choice


class _TextWatch:
    """One text: by its path while it is written, by a regex where something follows the match."""

    def __init__(self, locator: Locator) -> None:
        self._json = JsonWatch(locator.steps) if locator.steps is not None else None
        self._regex = locator.regex
        self._found: list[Choice] = []
        self._tail = ""
        """What no match has taken, and the character before it."""
        self._tail_at = 0
        self._start = 0
        self._added: list[str] = []
        self._length = 0
        self._due = 0

    def feed(self, added: str) -> None:
        if self._json is not None:
            self._json.feed(added)
            return
        if self._regex is None:
            return
        self._added.append(added)
        self._length += len(added)
        if self._length >= self._due:
            self._search(self._regex)

    def _search(self, regex: Pattern) -> None:
        text = self._tail + "".join(self._added)
        self._added.clear()
        taken = self._start
        for match in regex.found(text, self._start):
            # A match that ends where the text does may still grow.
            if match.end == len(text) or match.end == match.begin:
                break
            self._found.append(Choice(match.value, closed=True, final=False, at=self._tail_at + match.end))
            taken = match.end
        kept = max(0, taken - 1)
        self._tail, self._tail_at, self._start = text[kept:], self._tail_at + kept, taken - kept
        # Searched anew when a sixteenth more is there: so all searches together look at each character a
        # fixed number of times, however small the pieces are.
        self._length = len(self._tail)
        self._due = self._length + self._length // 16

    @property
    def choices(self) -> tuple[Choice, ...]:
        if self._json is None:
            return tuple(self._found)
        if self._regex is None:
            return self._json.choices
        return tuple(_within(self._json.choices, self._regex))


def _within(choices: Iterable[Choice], regex: Pattern) -> Iterable[Choice]:
    for choice in choices:
        match = regex.first(choice.value) if choice.closed else None
        if match is not None:
            yield Choice(match.value, closed=True, final=choice.final, at=choice.at)
