"""Chat Completions chunks on their way to one client's stream, with as little work per chunk as can be.

Each chunk gets this response's own id and created time and loses what the client did not ask for; every
other byte stays. Engines repeat the same id and created members in chunk after chunk, so the first chunk is
taken apart and its spelling of the two remembered; later chunks are changed by one search. An unescaped
quote can not stand inside a JSON text, so the remembered spelling can only be found where members are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from dynbranch.gateway.protocols.members import Member, NotAnObject, dump, members

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_OWN = frozenset({"id", "created"})


@dataclass(frozen=True, slots=True)
class ResponseIdentity:
    """The id and created time (seconds since 1970) of this response, and how its request names the model.

    A record, and a generation that others started, may name it by any of ``model_names``.
    """

    id: str
    created_s: int
    model: str = ""
    model_names: frozenset[str] = frozenset()

    def model_said(self, by_engine: object) -> object:
        """The model's name in this response."""
        known = isinstance(by_engine, str) and by_engine in self.model_names
        return self.model if known else by_engine


class MalformedItem(Exception):
    """The engine's log holds an item that is no chunk."""


def event(data: bytes) -> bytes:
    """One server-sent event. ``data`` holds no line break."""
    return b"data: " + data + b"\n\n"


class ChunkRelay:
    """Turns the items of one generation into server-sent events.

    ``cached``: the usage is marked as served from a record.
    """

    def __init__(self, identity: ResponseIdentity, *, include_usage: bool, cached: bool) -> None:
        self._identity = identity
        self._head = f'"id":{json.dumps(identity.id)},"created":{identity.created_s}'
        self._include_usage = include_usage
        self._cached = cached
        self._keeps_usage = include_usage and not cached
        self._learned = b""
        self._replacement = b""
        self._model = ""

    def events(self, items: tuple[bytes, ...]) -> bytes:
        """Whole events for these items; empty when nothing of them is for the client. Raises
        MalformedItem."""
        if len(items) == 1:
            return self._event(items[0])
        return b"".join(map(self._event, items))

    def end(self) -> bytes:
        """What follows the last item."""
        return DONE

    def _event(self, item: bytes) -> bytes:
        learned = self._learned
        if (
            learned
            and item.count(learned) == 1
            and b"\n" not in item
            and (self._keeps_usage or b'"usage"' not in item)
        ):
            return b"data: " + item.replace(learned, self._replacement) + b"\n\n"
        return self._taken_apart(item)

    def _taken_apart(self, item: bytes) -> bytes:
        try:
            parts = members(item.decode())
        except (NotAnObject, UnicodeDecodeError) as problem:
            raise MalformedItem(str(problem)) from None
        if not self._renames(parts):
            self._learn(item, parts)
        kept = [part for part in parts if part.key not in _OWN]
        if not self._include_usage:
            if _only_usage(kept):
                return b""
            kept = [part for part in kept if part.key != "usage"]
        spelled = [self._head, *self._missing_model(kept)]
        spelled += [f"{dump(part.key).decode()}:{self._spelling(part)}" for part in kept]
        return b"data: " + _one_line("{" + ",".join(spelled) + "}").encode() + b"\n\n"

    def _missing_model(self, parts: list[Member]) -> tuple[str, ...]:
        """A recorded log says what all chunks share only once; clients expect the model in each."""
        own = next((self._spelling(part) for part in parts if part.key == "model"), None)
        if own is not None:
            self._model = own
            return ()
        return (f'"model":{self._model}',) if self._model else ()

    def _renames(self, parts: list[Member]) -> bool:
        return any(
            part.key == "model" and self._identity.model_said(part.value) != part.value for part in parts
        )

    def _spelling(self, part: Member) -> str:
        if part.key == "model" and self._identity.model_said(part.value) != part.value:
            return dump(self._identity.model).decode()
        if self._cached and part.key == "usage" and isinstance(part.value, dict):
            return dump(marked_cached(part.value)).decode()
        return part.spelling

    def _learn(self, item: bytes, parts: list[Member]) -> None:
        """Remember the run of bytes that holds id and created side by side, if this engine writes them so."""
        self._learned = b""
        for index, (left, right) in enumerate(pairwise(parts)):
            if {left.key, right.key} != _OWN:
                continue
            run = f'"{left.key}":{left.spelling},"{right.key}":{right.spelling}'.encode()
            opening = b"{" if index == 0 else b","
            closing = b"}" if index + 2 == len(parts) else b","
            if item.count(opening + run + closing) == 1:
                self._learned = opening + run + closing
                self._replacement = opening + self._head.encode() + closing
            return
        self._learn_apart(item, parts)

    def _learn_apart(self, item: bytes, parts: list[Member]) -> None:
        """The other common order: id first, created two or three members later."""
        keys = [part.key for part in parts[:4]]
        if keys[:1] != ["id"] or "created" not in keys:
            return
        run = parts[: keys.index("created") + 1]
        learned = "{" + ",".join(f'"{part.key}":{part.spelling}' for part in run) + ","
        if not item.startswith(learned.encode()) or item.count(learned.encode()) != 1:
            return
        between = "".join(f'"{part.key}":{part.spelling},' for part in run[1:-1])
        self._learned = learned.encode()
        self._replacement = ("{" + self._head + "," + between).encode()


def _only_usage(parts: list[Member]) -> bool:
    """The chunk that engines send last when usage is asked for: no choices, only the counts."""
    found = {part.key: part.value for part in parts}
    return found.get("choices") == [] and isinstance(found.get("usage"), dict)


def _one_line(text: str) -> str:
    # A line break in JSON can only stand between tokens: inside a text it would be escaped.
    return text.replace("\n", " ").replace("\r", " ") if "\n" in text or "\r" in text else text


def marked_cached(usage: dict[str, object]) -> dict[str, object]:
    """The recorded counts, with the whole prompt marked as cached."""
    details = usage.get("prompt_tokens_details")
    details = dict(details) if isinstance(details, dict) else {}
    details["cached_tokens"] = usage.get("prompt_tokens", 0)
    return {**usage, "prompt_tokens_details": details}
