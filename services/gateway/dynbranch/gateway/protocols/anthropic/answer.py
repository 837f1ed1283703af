"""The chunks of a generation read as the blocks of a message: thinking, texts and calls, one after another.

One reader serves streams and whole answers, so that the two can not differ. What a harness is shown goes to a
``Page``; the reader keeps nothing but what the end needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from dynbranch.gateway.protocols.anthropic.signatures import GrowingSignature
from dynbranch.gateway.protocols.chunk_relay import MalformedItem
from dynbranch.naming.text_pieces import TextPieces


class BlockKind(Enum):
    TEXT = "text"
    THINKING = "thinking"
    CALL = "tool_use"


@dataclass(frozen=True, slots=True)
class Block:
    """``place`` is its index in the message; of a call ``name``, and ``call``, which counts calls alone."""

    place: int
    kind: BlockKind
    name: str = ""
    call: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the model stopped, and what was counted."""

    stop_reason: str
    stop_sequence: str | None
    usage: dict[str, int]


class Page(Protocol):
    """Where the blocks go. Blocks never overlap."""

    def opened(self, block: Block) -> None: ...

    def grew(self, block: Block, text: str) -> None:
        """A call's text is a piece of the JSON of its input."""

    def closed(self, block: Block, signature: str) -> None:
        """``signature`` is of thinking alone."""

    def ended(self, ending: Ending) -> None: ...


@dataclass(slots=True)
class _Call:
    """The call that is being written. It shows with its first argument, as then its name is whole."""

    index: int
    name: str = ""
    block: Block | None = None


class AnswerReader:
    """``stops`` are the request's stop sequences. ``cached``: the answer is from a record.

    ``hides_thinking``: blocks of thinking show without their text.
    """

    def __init__(
        self, page: Page, *, stops: frozenset[str] = frozenset(), cached: bool, hides_thinking: bool = False
    ) -> None:
        self._page = page
        self._stops = stops
        self._cached = cached
        self._hides_thinking = hides_thinking
        self._pieces = TextPieces()
        self._place = 0
        self._calls = 0
        self._block: Block | None = None
        self._call: _Call | None = None
        self._called: set[int] = set()
        self._signature: GrowingSignature | None = None
        self._said_anything = False
        self._finish = ""
        self._stopped_by: str | None = None
        self._refused = False
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
        self._close()
        self._page.ended(Ending(*self._stop(), self._counts()))

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
            (BlockKind.TEXT, ("refusal",)),
        ):
            text = next((delta[key] for key in keys if isinstance(delta.get(key), str) and delta[key]), "")
            if text:
                self._refused = self._refused or keys == ("refusal",)
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
            if kind is BlockKind.THINKING:
                self._signature = GrowingSignature(holds_text=self._hides_thinking)
        if self._signature is not None:
            self._signature.add(text)
            if self._hides_thinking:
                return
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

    def _close(self) -> None:
        if self._call is not None:
            self._opened_call(self._call)
        if self._block is not None:
            signature = self._signature.text() if self._signature is not None else ""
            self._page.closed(self._block, signature)
        self._block = self._call = self._signature = None

    # -- the end -------------------------------------------------------------------------------------------

    def _stop(self) -> tuple[str, str | None]:
        match self._finish:
            case "length":
                return "max_tokens", None
            case "content_filter":
                return "refusal", None
            case _ if self._refused:
                return "refusal", None
            case _ if self._calls:
                return "tool_use", None
            case _ if self._stopped_by is not None:
                return "stop_sequence", self._stopped_by
            case _:
                return "end_turn", None

    def _counts(self) -> dict[str, int]:
        details = self._usage.get("prompt_tokens_details")
        prompt = _count(self._usage, "prompt_tokens")
        read = prompt if self._cached else min(prompt, _count(details, "cached_tokens"))
        return {
            "input_tokens": prompt - read,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": read,
            "output_tokens": _count(self._usage, "completion_tokens"),
        }


def _count(counts: Any, key: str) -> int:
    value = counts.get(key) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and value > 0 else 0
