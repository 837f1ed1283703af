"""Protocols beside OpenAI's older ones, as engines serve them natively: what a request asks in the form of
Chat Completions, and how its answer is spelled.

They are written from the protocols' own references and share nothing with a gateway, so that a harness can
be seen without one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from dynbranch.stub_engine import toy_tokens
from dynbranch.stub_engine.answer import Answer, text_pieces
from dynbranch.stub_engine.asking import BadRequest
from dynbranch.stub_engine.generation import Generation, Shape
from dynbranch.stub_engine.script import ToolCall

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens."""

    prompt: int
    cached: int
    output: int


class Spelling(Protocol):
    """One answer in one protocol. Texts are whole events of a stream."""

    def opening(self) -> str: ...

    def tokens(self) -> list[str]:
        """What each token shows."""

    def closing(self, tokens: int, reason: str, counted: Counted) -> str:
        """After so many tokens; ``reason`` is one of Chat Completions'."""

    def whole(self, reason: str, counted: Counted) -> str: ...


class Native(Protocol):
    """One protocol."""

    def as_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Raises BadRequest."""

    def spelling(self, body: dict[str, Any], answer: Answer, shape: Shape) -> Spelling: ...


@dataclass(frozen=True, slots=True)
class Spoken:
    """One request in a protocol."""

    native: Native
    body: dict[str, Any]

    @classmethod
    def of(cls, native: Native, source: bytes) -> Spoken:
        """Raises BadRequest."""
        return cls(native, parsed(source))

    @property
    def chat(self) -> bytes:
        """Raises BadRequest."""
        return compact(self.native.as_chat(self.body)).encode("utf-8", "surrogatepass")

    def spelling(self, answer: Answer, shape: Shape) -> Spelling:
        return self.native.spelling(self.body, answer, shape)


class SpelledGeneration(Generation):
    """A generation whose answer is spelled in a protocol of its own."""

    __slots__ = ("_spelling",)

    def __init__(self, spelling: Spelling, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._spelling = spelling

    def _prepare(self) -> None:
        self._head = self._spelling.opening()
        self._deltas = self._spelling.tokens()

    def _rendered(self) -> bytes:
        if self._is_given:
            return super()._rendered()
        first, self._sent = self._sent, self._count
        opening = self._head if first == 0 and self._sent else ""
        text = opening + "".join(self._deltas[first : self._sent])
        return text.encode("utf-8", "surrogatepass")

    def _closing(self, reason: str) -> bytes:
        opening = "" if self._sent else self._head
        text = opening + self._spelling.closing(self._sent, reason, self._counted())
        return text.encode("utf-8", "surrogatepass")

    def _whole(self, reason: str) -> bytes:
        return self._spelling.whole(reason, self._counted()).encode("utf-8", "surrogatepass")

    def _counted(self) -> Counted:
        return Counted(self.prompt_tokens, self.hit_tokens, self._count)


# -- an answer as blocks -------------------------------------------------------------------------------------


class Kind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Block:
    """One block of an answer, and what each of its tokens adds to it."""

    place: int
    kind: Kind
    pieces: tuple[str, ...]
    call: ToolCall | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def blocks_of(answer: Answer) -> list[Block]:
    """In the order and with the tokens of ``answer.deltas``: a call's first token shows its name."""
    found: list[tuple[Kind, list[str], ToolCall | None]] = []
    if answer.reasoning:
        found.append((Kind.REASONING, toy_tokens.pieces(answer.reasoning), None))
    if answer.text or not answer.calls:
        found.append((Kind.TEXT, text_pieces(answer), None))
    for call in answer.calls:
        pieces = toy_tokens.pieces(call.arguments)
        whole = answer.whole_arguments
        found.append((Kind.CALL, [call.arguments, *("" for _ in pieces)] if whole else ["", *pieces], call))
    return [Block(place, kind, tuple(pieces), call) for place, (kind, pieces, call) in enumerate(found)]


def shown(blocks: Iterable[Block]) -> Iterator[tuple[Block, int, str]]:
    """Token by token: its block, its number in it, and what it adds."""
    for block in blocks:
        for number, piece in enumerate(block.pieces):
            yield block, number, piece


def parsed(source: bytes) -> dict[str, Any]:
    """Raises BadRequest."""
    try:
        body = json.loads(source)
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("The body is not a JSON object.")
    return body


def function(tool: dict[str, Any], parameters: str, name: str = "") -> dict[str, Any]:
    """A tool as Chat Completions has it. ``parameters``: the member that holds their schema."""
    described = {"name": name or tool.get("name"), "description": tool.get("description", "")}
    return {"type": "function", "function": {**described, "parameters": tool.get(parameters) or {}}}
