"""What a Chat Completions stream must be before its end counts as an end.

Only a stream that gave every choice a finish reason and said ``[DONE]`` is a result. Everything else is a
failure, so that a broken execution is never stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from dynbranch.engine_agent.engines.sse import MalformedStream, SseEvent
from dynbranch.naming.text_pieces import TextPieces

STORABLE_FINISHES = frozenset({"stop", "length", "tool_calls", "function_call"})
BROKEN_FINISHES = frozenset({"abort", "error"})
"""How engines end a stream that they gave up."""

_DONE = b"[DONE]"


class ErrorChunk(Exception):
    """The engine reported an error inside its stream."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(body[:200])
        self.status = status
        self.body = body


@dataclass(slots=True)
class ChatStream:
    """Checks one stream, event by event."""

    done: bool = False
    produced: bool = False
    """Whether any item has come."""
    finishes: dict[int, str] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _pieces: TextPieces = field(default_factory=TextPieces)

    def take(self, event: SseEvent) -> bytes | None:
        """The chunk's raw JSON; None for the end mark. Raises ErrorChunk and MalformedStream."""
        data = event.data.strip()
        if event.event == "message" and self.is_another_piece(data):
            return data
        if data == _DONE:
            self.done = True
            return None
        return self._judged(data, event.event)

    def _judged(self, data: bytes, kind: str) -> bytes:
        try:
            chunk = json.loads(data.decode())
        except (ValueError, RecursionError) as flaw:
            raise MalformedStream(f"a chunk is not JSON: {flaw}") from None
        if not isinstance(chunk, dict):
            raise MalformedStream("a chunk is not a JSON object")
        reported = chunk.get("error")
        if reported is not None or chunk.get("object") == "error" or kind == "error":
            raise ErrorChunk(_status(chunk if reported is None else reported), data)
        choices = chunk.get("choices") or []
        if not isinstance(choices, list):
            raise MalformedStream("the choices of a chunk are not a list")
        for choice in choices:
            self._choice(choice)
        self._pieces.learn(data, chunk)
        return data

    def is_another_piece(self, data: bytes) -> bool:
        """Whether an event's data is as the chunk before it, but for its text: nothing of it has to be judged
        anew, and no line break is in it. Of such a chunk nothing else is to be taken."""
        return self._pieces.piece_of(data) is not None

    def take_all(
        self, events: Iterable[SseEvent]
    ) -> tuple[tuple[bytes, ...], ErrorChunk | MalformedStream | None]:
        """Raw chunks up to the end mark, or up to a flaw."""
        items: list[bytes] = []
        alike: list[bytes] = []
        flaw: ErrorChunk | MalformedStream | None = None
        pieces = self._pieces
        try:
            for event in events:
                if pieces.is_alike(event.data) and event.event == "message":
                    alike.append(event.data)
                    continue
                self._take_alike(alike, items)
                item = self.take(event)
                if item is None:
                    break
                items.append(item)
            self._take_alike(alike, items)
        except (ErrorChunk, MalformedStream) as found:
            flaw = found
        self.produced = self.produced or bool(items)
        return tuple(items), flaw

    def _take_alike(self, alike: list[bytes], items: list[bytes]) -> None:
        """What may be more pieces is looked at together, for it is most of a stream."""
        if not alike:
            return
        plain = self._pieces.text_of(alike) is not None
        for data in alike:
            # Else one of them says more, or something else, and each is judged by itself.
            items.append(data if plain else self._judged(data, "message"))
        alike.clear()

    def check_end(self) -> str:
        """Call at the end of the stream. Returns why the result may not be stored, or an empty string.

        Raises MalformedStream when the stream was cut off.
        """
        if not self.done:
            raise MalformedStream("the stream ended without its end mark")
        if not self.finishes or self._open - self.finishes.keys():
            raise MalformedStream("the stream ended before every choice had a finish reason")
        reasons = set(self.finishes.values())
        if reasons & BROKEN_FINISHES:
            raise MalformedStream("the engine gave the generation up")
        if "content_filter" in reasons:
            return "content_filter"
        return "" if reasons <= STORABLE_FINISHES else "unknown_finish_reason"

    def _choice(self, choice: object) -> None:
        if not isinstance(choice, dict):
            raise MalformedStream("a choice is not a JSON object")
        index = choice.get("index", 0)
        if not isinstance(index, int):
            raise MalformedStream("a choice has no index")
        self._open.add(index)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self.finishes[index] = finish


def _status(error: object) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 0
