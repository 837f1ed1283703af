"""Reads an answer along while it goes to its client, and never makes it wait.

The relay hands over what it has sent; it is looked at in the next turn of the event loop, all of it at once,
and then not again for some milliseconds: the work is per look, not per token. Whatever goes wrong here ends
the reading, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from dynbranch.domain.events import Selection
from dynbranch.domain.template import Choice, Output, StageKind
from dynbranch.gateway.core.spoken import SpokenNames
from dynbranch.rendering.outputs import Added, GrowingOutput, tool_output
from dynbranch.rendering.selectors import Selector, Watch

_log = logging.getLogger(__name__)

MAX_OUTPUT_CHARACTERS = 2**18
"""A longer output is not read to its end."""

MAX_ITEM_BYTES = 2**21
"""A larger item holds more characters than that, however they are escaped: it is not even parsed."""

LOOK_EVERY_S = 0.005
"""A choice is seen so much later at most; a token of a fast engine takes less."""

MAX_CHOICES = 64
"""Told of one answer at one decision point; a menu that is copied into the output is no choice."""

TellChoice = Callable[[Selection, bool, int], None]
"""A choice shows: whether nothing can change it any more, and after how many items."""


MAX_UNHEARD = 2**15
"""Characters of an answer that are kept until it is known what might be chosen."""

BREAK = ".\n"
"""Between what was thought and what is said no name goes on."""

TellSpoken = Callable[[Selection, int], None]
"""An answer speaks of what it might choose, after how many items."""


class SpokenWatch:
    """Tells of every name that one answer speaks of before it chooses, once."""

    def __init__(self, tell: TellSpoken) -> None:
        self._tell = tell
        self._names: Mapping[str, SpokenNames] | None = None
        self._unheard: list[str] = []
        self._length = 0
        self._thinks = False

    def know(self, names: Mapping[str, SpokenNames]) -> None:
        """What might be chosen, by decision point. May be told by another thread, and after the answer has
        begun."""
        self._names = names

    def begin(self) -> None:
        """Another answer comes in the place of this one."""
        self._unheard, self._length, self._thinks = [], 0, False
        for names in (self._names or {}).values():
            names.begin()

    def read(self, added: Added, items: int) -> None:
        text = added.reasoning
        if added.text:
            text += BREAK + added.text if text or self._thinks else added.text
            self._thinks = False
        else:
            self._thinks = self._thinks or bool(text)
        names = self._names
        if names is None:
            self._length += len(text)
            self._unheard = [*self._unheard, text] if self._length <= MAX_UNHEARD else []
            return
        if self._unheard:
            text = "".join(self._unheard) + text
            self._unheard = []
        for point, one in names.items():
            self._tell_all(point, one.feed(text), items)

    def begun(self, point: str, beginning: str, items: int) -> None:
        """A choice is being written."""
        names = (self._names or {}).get(point)
        if names is not None:
            self._tell_all(point, names.begun(beginning), items)

    def _tell_all(self, point: str, fresh: tuple[str, ...], items: int) -> None:
        for name in fresh:
            self._tell(Selection(point, (name,)), items)


class ChoiceWatch:
    """Tells of every choice of one answer the moment that its text is complete, once. ``begun`` is told of
    the beginning of one that is not."""

    def __init__(
        self,
        selectors: Mapping[str, Selector],
        tell: TellChoice,
        begun: Callable[[str, str, int], None] | None = None,
    ) -> None:
        self._selectors = selectors
        self._tell = tell
        self._begun = begun
        self._told: dict[str, set[str]] = {point: set() for point in selectors}
        self._closed: set[str] = set()
        self._watches: dict[str, Watch] = {}
        self.begin()

    def begin(self) -> None:
        """From the beginning of the answer, or of another one in its place."""
        self._watches = {
            point: selector.watch()
            for point, selector in self._selectors.items()
            if point not in self._closed
        }

    def read(self, added: Added, items: int) -> None:
        for point, watch in tuple(self._watches.items()):
            self._look(point, watch.feed(added), items)

    def _look(self, point: str, choices: tuple[Choice, ...], items: int) -> None:
        told = self._told[point]
        for choice in choices:
            if not choice.closed and self._begun is not None:
                self._begun(point, choice.value, items)
            if not choice.closed or (choice.value in told and not choice.final):
                continue
            told.add(choice.value)
            self._tell(Selection(point, (choice.value,)), choice.final, items)
            if choice.final:
                self._closed.add(point)
            if choice.final or len(told) >= MAX_CHOICES:
                self._watches.pop(point, None)
                return


class Listener:
    """One answer. ``watch`` and ``spoken`` are asked while it comes."""

    def __init__(
        self, kind: StageKind, watch: ChoiceWatch | None = None, spoken: SpokenWatch | None = None
    ) -> None:
        self._kind = kind
        self._watch = watch
        self._spoken = spoken
        self._unread: list[bytes] = []
        self._is_due = False
        self._next_look_s = 0.0
        self._growing = GrowingOutput()
        self._result: bytes | None = None
        self._items = 0
        self._characters = 0
        self._deaf = False
        self._complete = False
        self.execution_ms = 0.0

    def more(self, items: tuple[bytes, ...]) -> None:
        """What was just sent, or is kept to be sent."""
        if self._deaf:
            return
        self._unread += items
        if not self._is_due:
            self._is_due = True
            loop = asyncio.get_running_loop()
            wait_s = self._next_look_s - loop.time()
            if wait_s > 0:
                loop.call_later(wait_s, self._look_up)
            else:
                loop.call_soon(self._look_up)

    def forget(self) -> None:
        """What came so far came to nothing; another answer begins."""
        self._unread.clear()
        self._growing, self._result = GrowingOutput(), None
        self._items = self._characters = 0
        self._complete = False
        if self._watch is not None:
            self._watch.begin()
        if self._spoken is not None:
            self._spoken.begin()

    def ended(self, execution_ms: float) -> None:
        """The answer is whole."""
        self._complete, self.execution_ms = True, execution_ms

    @property
    def complete(self) -> bool:
        return self._complete

    def output(self) -> Output | None:
        """The whole answer; None where it did not end well, or could not be read."""
        self._read()
        if self._deaf or not self._complete:
            return None
        if self._kind is StageKind.TOOL:
            return None if self._result is None else tool_output(self._result)
        return self._growing.output()

    def _look_up(self) -> None:
        self._is_due = False
        self._next_look_s = asyncio.get_running_loop().time() + LOOK_EVERY_S
        self._read()

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        if self._deaf or not unread:
            return
        try:
            self._take(unread)
        except Exception:  # noqa: BLE001  # the answer must not fail for what is only read along
            _log.exception("an answer can not be read along")
            self._deaf = True
        if self._deaf:
            self._growing, self._result, self._watch, self._spoken = GrowingOutput(), None, None, None

    def _take(self, items: list[bytes]) -> None:
        self._items += len(items)
        if max(map(len, items)) > MAX_ITEM_BYTES:
            self._deaf = True
            return
        if self._kind is StageKind.TOOL:
            self._characters += sum(map(len, items))
            self._result = items[-1]
        else:
            added = _together([self._growing.add(item) for item in items])
            self._characters += len(added.text) + sum(len(arguments) for _, _, arguments in added.calls)
            self._watch_choices(added)
        self._deaf = self._characters > MAX_OUTPUT_CHARACTERS

    def _watch_choices(self, added: Added) -> None:
        try:
            if self._watch is not None:
                self._watch.read(added, self._items)
            if self._spoken is not None:
                self._spoken.read(added, self._items)
        except Exception:  # noqa: BLE001  # a template's own patterns run here; the whole may be readable yet
            _log.exception("an answer's choices can not be watched")
            self._watch = self._spoken = None


def _together(added: list[Added]) -> Added:
    """What several items added; an answer's text and its calls do not mind each other's order."""
    if len(added) == 1:
        return added[0]
    return Added(
        "".join(one.text for one in added),
        tuple(piece for one in added for piece in one.calls),
        "".join(one.reasoning for one in added),
    )
