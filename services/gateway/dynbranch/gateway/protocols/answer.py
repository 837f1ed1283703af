"""The chunks of a generation read as blocks, one after another: thinking, texts, refusals and calls.

One reader serves streams and whole answers, so that the two can not differ. What a harness is shown goes to a
``Page``; the reader keeps what the end needs, and what comes while a call is unfinished: blocks never
overlap, and engines may go on with a call after something else began.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from dynbranch.gateway.protocols.chunk_relay import MalformedItem
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.protocols.object_end import ObjectEnd
from dynbranch.naming.text_pieces import TextPieces


class BlockKind(Enum):
    TEXT = "text"
    THINKING = "thinking"
    REFUSAL = "refusal"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Block:
    """``place`` is its index in the answer; of a call ``name``, and ``call``, which counts calls alone."""

    place: int
    kind: BlockKind
    name: str = ""
    call: int = 0


class Finish(Enum):
    """Why the model stopped. CALLS: to be told their results."""

    DONE = "done"
    CALLS = "calls"
    LENGTH = "length"
    FILTERED = "filtered"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens. ``cached`` are of the prompt, ``reasoning`` of the output."""

    prompt: int
    cached: int
    output: int
    reasoning: int


@dataclass(frozen=True, slots=True)
class Ending:
    """``stop_sequence``: which of the request's own ended it, where the engine tells."""

    finish: Finish
    stop_sequence: str | None
    counts: Counts


class Page(Protocol):
    """Where the blocks go. Blocks never overlap."""

    def opened(self, block: Block) -> None: ...

    def grew(self, block: Block, text: str) -> None:
        """A call's text is a piece of the JSON of its input."""

    def closed(self, block: Block, *, cut: bool) -> None:
        """``cut``: the limit of tokens came before its end."""

    def ended(self, ending: Ending) -> None: ...


_OLD_WAY: Final = -1
"""The place of a call that is told in the way before there were several."""


@dataclass(slots=True)
class _Growing:
    """What will be a block, or is one. A call shows with its first argument, as then its name is whole; what
    follows the object of its arguments is no part of it."""

    kind: BlockKind
    name: str = ""
    unshown: list[str] = field(default_factory=list)
    block: Block | None = None
    arguments: ObjectEnd = field(default_factory=ObjectEnd)

    @property
    def may_go_on(self) -> bool:
        """Also when something else has begun."""
        return self.kind is BlockKind.CALL and not self.arguments.ended


class AnswerReader:
    """``stops`` are the request's stop sequences. ``cached``: the answer is from a record."""

    def __init__(self, page: Page, *, stops: frozenset[str] = frozenset(), cached: bool) -> None:
        self._page = page
        self._stops = stops
        self._cached = cached
        self._pieces = TextPieces()
        self._place = 0
        self._calls = 0
        self._growing: deque[_Growing] = deque()
        """The first one is being shown; the others wait for its end."""
        self._called: dict[int | str, _Growing] = {}
        self._choice: int | None = None
        """The one that began first: only one was asked for."""
        self._refused = False
        self._finish = ""
        self._stopped_by: str | None = None
        self._usage: dict[str, Any] = {}

    def read(self, items: Iterable[bytes]) -> None:
        """Raises MalformedItem."""
        pieces, alike = self._pieces, list[bytes]()
        for item in items:
            if pieces.is_alike(item):
                alike.append(item)
                continue
            if alike:
                self._read_alike(alike)
                alike.clear()
            self._read_one(item)
        if alike:
            self._read_alike(alike)

    def end(self) -> None:
        """The generation is complete. Raises MalformedItem if it gave no answer at all."""
        if self._choice is None:
            raise MalformedItem("the engine gave no choice")
        while self._growing:
            self._close_first(cut=self._finish == "length" and len(self._growing) == 1)
        self._page.ended(self._ending())

    # -- chunks --------------------------------------------------------------------------------------------

    def _read_alike(self, items: list[bytes]) -> None:
        text = self._pieces.text_of(items)
        if text is not None and self._pieces.choice == self._choice:
            self._grow(BlockKind.TEXT, text)
            return
        for item in items:
            self._read_one(item)

    def _read_one(self, item: bytes) -> None:
        try:
            chunk = json.loads(item)
        except (ValueError, RecursionError) as problem:
            raise MalformedItem(str(problem)) from None
        if not isinstance(chunk, dict):
            raise MalformedItem("an item is not an object")
        self._pieces.learn(item, chunk)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        for place, choice in enumerate(chunk.get("choices") or ()):
            index = choice.get("index") if isinstance(choice, dict) else ""
            index = place if index is None else index
            if not isinstance(index, int) or isinstance(index, bool) or index < 0:
                raise MalformedItem("a choice is not an object with an index")
            if self._choice is None:
                self._choice = index
            if self._choice == index:
                self._read_choice(choice)

    def _read_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._read_delta(delta)
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._finish = reason
        for key in ("stop_reason", "matched_stop"):
            met = choice.get(key)
            if isinstance(met, str) and met in self._stops:
                self._stopped_by = met

    def _read_delta(self, delta: dict[str, Any]) -> None:
        # Some engines say one piece of reasoning under both of its names.
        for kind, keys in (
            (BlockKind.THINKING, ("reasoning_content", "reasoning")),
            (BlockKind.TEXT, ("content",)),
            (BlockKind.REFUSAL, ("refusal",)),
        ):
            text = next((delta[key] for key in keys if isinstance(delta.get(key), str) and delta[key]), "")
            if text:
                self._refused = self._refused or kind is BlockKind.REFUSAL
                self._grow(kind, text)
        calls = delta.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._read_call(_key(call, place), call.get("function"))
        if isinstance(delta.get("function_call"), dict):
            self._read_call(_OLD_WAY, delta["function_call"])

    def _read_call(self, key: int | str, function: Any) -> None:
        if not isinstance(function, dict):
            return
        call = self._called.get(key)
        if call is None:
            call = self._called[key] = self._began(_Growing(BlockKind.CALL))
        name, piece = function.get("name"), function.get("arguments")
        # Some engines repeat the name with every delta; a different one is the rest of it.
        if isinstance(name, str) and name != call.name and call.block is None:
            call.name += name
        if isinstance(piece, dict):
            # Not what engines are to say, but it can be read.
            piece = dump(piece).decode()
        if isinstance(piece, str):
            self._add(call, call.arguments.up_to(piece))
            self._go_on()

    # -- blocks --------------------------------------------------------------------------------------------

    def _grow(self, kind: BlockKind, text: str) -> None:
        last = self._growing[-1] if self._growing else None
        if last is None or last.kind is not kind:
            last = self._began(_Growing(kind))
        self._add(last, text)

    def _began(self, growing: _Growing) -> _Growing:
        self._growing.append(growing)
        self._go_on()
        return growing

    def _add(self, growing: _Growing, text: str) -> None:
        if not text:
            return
        if growing is self._growing[0]:
            self._page.grew(self._shown(growing), text)
        else:
            growing.unshown.append(text)

    def _go_on(self) -> None:
        """To what waits, where nothing more can come of what is shown."""
        while len(self._growing) > 1 and not self._growing[0].may_go_on:
            self._close_first(cut=False)

    def _close_first(self, *, cut: bool) -> None:
        self._page.closed(self._shown(self._growing.popleft()), cut=cut)
        if self._growing and self._growing[0].unshown:
            following = self._growing[0]
            text = "".join(following.unshown)
            following.unshown.clear()
            self._page.grew(self._shown(following), text)

    def _shown(self, growing: _Growing) -> Block:
        if growing.block is None:
            growing.block = Block(self._place, growing.kind, growing.name, self._calls)
            self._place += 1
            self._calls += growing.kind is BlockKind.CALL
            self._page.opened(growing.block)
        return growing.block

    # -- the end -------------------------------------------------------------------------------------------

    def _ending(self) -> Ending:
        finish = self._finish_of()
        return Ending(finish, self._stopped_by if finish is Finish.DONE else None, self._counts())

    def _finish_of(self) -> Finish:
        match self._finish:
            case "length":
                return Finish.LENGTH
            case "content_filter":
                return Finish.FILTERED
            case _ if self._refused:
                return Finish.REFUSED
            case _:
                return Finish.CALLS if self._calls else Finish.DONE

    def _counts(self) -> Counts:
        prompt = _count(self._usage, "prompt_tokens")
        read = _count(self._usage.get("prompt_tokens_details"), "cached_tokens")
        return Counts(
            prompt=prompt,
            cached=prompt if self._cached else min(prompt, read),
            output=_count(self._usage, "completion_tokens"),
            reasoning=_count(self._usage.get("completion_tokens_details"), "reasoning_tokens"),
        )


def _key(call: dict[str, Any], place: int) -> int | str:
    """What tells a call from others. Engines that give whole calls may leave out the index."""
    index, given = call.get("index"), call.get("id")
    if isinstance(index, int):
        return index
    return given if isinstance(given, str) and given else place


def _count(counts: Any, key: str) -> int:
    value = counts.get(key) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and value > 0 else 0
