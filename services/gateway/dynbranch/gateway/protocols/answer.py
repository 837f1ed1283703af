"""The chunks of a generation read as blocks, one after another: thinking, texts, refusals and calls.

One reader serves streams and whole answers, so that the two can not differ. What a harness is shown goes to a
``Page``; the reader keeps nothing but what the end needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from dynbranch.gateway.protocols.chunk_relay import MalformedItem
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


@dataclass(slots=True)
class _Call:
    """The call that is being written. It shows with its first argument, as then its name is whole."""

    index: int
    name: str = ""
    block: Block | None = None


class AnswerReader:
    """``stops`` are the request's stop sequences. ``cached``: the answer is from a record."""

    def __init__(self, page: Page, *, stops: frozenset[str] = frozenset(), cached: bool) -> None:
        self._page = page
        self._stops = stops
        self._cached = cached
        self._pieces = TextPieces()
        self._place = 0
        self._calls = 0
        self._block: Block | None = None
        self._call: _Call | None = None
        self._called: set[int] = set()
        self._said_anything = False
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
        if not self._said_anything:
            raise MalformedItem("the engine gave no choice")
        self._close(cut=self._finish == "length")
        self._page.ended(self._ending())

    # -- chunks --------------------------------------------------------------------------------------------

    def _read_alike(self, items: list[bytes]) -> None:
        text = self._pieces.text_of(items)
        if text is not None and self._pieces.choice == 0:
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
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, dict) or choice.get("index") not in (0, None):
                raise MalformedItem("a choice is not the only one")
            self._read_choice(choice)

    def _read_choice(self, choice: dict[str, Any]) -> None:
        self._said_anything = True
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
                index = call.get("index")
                self._read_call(index if isinstance(index, int) else place, call.get("function"))
        if isinstance(delta.get("function_call"), dict):
            self._read_call(0, delta["function_call"])

    def _read_call(self, index: int, function: Any) -> None:
        if not isinstance(function, dict):
            return
        if self._call is None or self._call.index != index:
            self._close()
            if index in self._called:
                raise MalformedItem("a call goes on after another one began")
            self._called.add(index)
            self._call = _Call(index)
        call = self._call
        name, piece = function.get("name"), function.get("arguments")
        # Some engines repeat the name with every delta; a different one is the rest of it.
        if isinstance(name, str) and name != call.name and call.block is None:
            call.name += name
        if isinstance(piece, str) and piece:
            self._page.grew(self._opened_call(call), piece)

    # -- blocks --------------------------------------------------------------------------------------------

    def _grow(self, kind: BlockKind, text: str) -> None:
        block = self._block
        if block is None or block.kind is not kind:
            self._close()
            block = self._open(Block(self._place, kind))
        self._page.grew(block, text)

    def _opened_call(self, call: _Call) -> Block:
        if call.block is None:
            call.block = self._open(Block(self._place, BlockKind.CALL, call.name, self._calls))
            self._calls += 1
        return call.block

    def _open(self, block: Block) -> Block:
        self._block = block
        self._place += 1
        self._page.opened(block)
        return block

    def _close(self, *, cut: bool = False) -> None:
        if self._call is not None:
            self._opened_call(self._call)
        if self._block is not None:
            self._page.closed(self._block, cut=cut)
        self._block = self._call = None

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


def _count(counts: Any, key: str) -> int:
    value = counts.get(key) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and value > 0 else 0
