"""The pieces of a generation's log put together: choices, their segments, and the calls and texts in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Final

from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import Json, Number, parse_text

RUN_NOISE: Final = frozenset({"id", "created", "object", "timings", "prompt_progress"})
"""What chunks say beside their choices that is only of that run."""

_CHUNK_KEYS: Final = frozenset({"choices", "usage"})
_CHOICE_KEYS: Final = frozenset({"index", "delta", "logprobs", "finish_reason"})
_OBJECT: Final = "chat.completion.chunk"
_BARE_ERROR: Final = "error"
_INDEX_DIGITS: Final = 9

# A family's texts advance together: some engines send reasoning under both of its names.
_TEXT_FAMILIES: Final = {
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "content": "content",
    "refusal": "refusal",
}
_CALL_KEYS: Final = frozenset({"tool_calls", "function_call"})
_DELTA_KEYS: Final = frozenset({"role", *_TEXT_FAMILIES, *_CALL_KEYS})
_ARGUMENTS: Final = {"function": "arguments", "custom": "input"}
"""A call's kinds, and what each calls the text that the model writes."""


class MalformedLog(ValueError):
    """An item is not a chunk, or a payload is not an encoded log. The message says which and why."""


@dataclass(slots=True)
class Call:
    """One tool call as it grows. ``extras`` are what this file does not know, one object per delta that had
    any."""

    index: int
    kind: str = ""
    fixed: dict[str, Json] = field(default_factory=dict)
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    extras: list[dict[str, Json]] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def grow(self, delta: dict[str, Json]) -> None:
        for kind, written in _ARGUMENTS.items():
            called = delta.get(kind)
            if isinstance(called, dict):
                self.kind = self.kind or kind
                self.grow_called(called, written)
        for key in ("id", "type"):
            if delta.get(key):
                self.fixed.setdefault(key, delta[key])
        extra = _present(delta, {"index", "id", "type", *_ARGUMENTS})
        if extra:
            self.extras.append(extra)

    def grow_called(self, called: dict[str, Json], written: str) -> None:
        name, piece = called.get("name"), called.get(written)
        # Some engines repeat the name with every delta; a different one is the rest of it.
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(piece, str):
            self.pieces.append(piece)

    def called(self) -> dict[str, Json]:
        written = _ARGUMENTS.get(self.kind, "arguments")
        named: dict[str, Json] = {"name": self.name} if self.name else {}
        return {**named, written: self.arguments}

    def deltas(self) -> Iterator[dict[str, Json]]:
        index = Number(str(self.index))
        called: dict[str, Json] = {self.kind: self.called()} if self.kind else {}
        yield {"index": index, **self.fixed, **called}
        for extra in self.extras:
            yield {"index": index, **extra}


@dataclass(slots=True)
class Segment:
    """A stretch of one choice's output in which one family advances. An unknown delta is a segment of its
    own."""

    family: str
    texts: dict[str, list[str]] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    unknown: dict[str, Json] = field(default_factory=dict)
    beside: dict[str, Json] = field(default_factory=dict)
    logprobs: dict[str, list[Json]] = field(default_factory=dict)

    def delta(self) -> dict[str, Json]:
        delta: dict[str, Json] = {
            key: "".join(self.texts[key]) for key in _TEXT_FAMILIES if key in self.texts
        }
        if self.family == "tool_calls":
            # In the order in which they began, which readers of the log show them in.
            delta["tool_calls"] = [piece for call in self.calls.values() for piece in call.deltas()]
        elif self.family == "function_call":
            delta["function_call"] = self.calls[0].called()
        return {**delta, **self.unknown}


@dataclass(slots=True)
class Choice:
    index: int
    role: Json = None
    seen_texts: set[str] = field(default_factory=set)
    segments: list[Segment] = field(default_factory=list)
    finish_reason: Json = None
    beside_finish: dict[str, Json] = field(default_factory=dict)

    def grow(self, chunk: dict[str, Json]) -> None:
        delta = chunk.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        self.role = self.role or delta.get("role")
        texts, calls = self._grow_texts(delta), self._grow_calls(delta)
        touched = texts or calls
        beside = _present(chunk, _CHOICE_KEYS)
        if chunk.get("finish_reason") is not None:
            self.finish_reason = chunk["finish_reason"]
            self.beside_finish.update(beside)
            beside = {}
        logprobs = chunk.get("logprobs")
        if logprobs is not None and not _is_lists(logprobs):
            beside["logprobs"] = logprobs
            logprobs = None
        unknown = _present(delta, _DELTA_KEYS)
        if unknown or beside:
            self.segments.append(Segment("", unknown=unknown, beside=beside))
        if isinstance(logprobs, dict):
            self._grow_logprobs(touched, logprobs)

    def _grow_texts(self, delta: dict[str, Json]) -> Segment | None:
        said: dict[str, dict[str, str]] = {}
        for key, family in _TEXT_FAMILIES.items():
            text = delta.get(key)
            if isinstance(text, str):
                self.seen_texts.add(key)
                if text:
                    said.setdefault(family, {})[key] = text
        touched = None
        for family, texts in said.items():
            touched = self._segment(family, texts.keys())
            for key, text in texts.items():
                touched.texts.setdefault(key, []).append(text)
        return touched

    def _grow_calls(self, delta: dict[str, Json]) -> Segment | None:
        touched = None
        tool_calls = delta.get("tool_calls")
        for place, call_delta in enumerate(tool_calls if isinstance(tool_calls, list) else ()):
            if isinstance(call_delta, dict):
                touched = self._segment("tool_calls")
                index = _index(call_delta, place)
                touched.calls.setdefault(index, Call(index)).grow(call_delta)
        function_call = delta.get("function_call")
        if isinstance(function_call, dict):
            touched = self._segment("function_call")
            touched.calls.setdefault(0, Call(0, "function")).grow_called(function_call, "arguments")
        return touched

    def _grow_logprobs(self, touched: Segment | None, logprobs: dict[str, Json]) -> None:
        entries = {key: value for key, value in logprobs.items() if isinstance(value, list)}
        if not entries:
            return
        if touched is None:
            touched = self.segments[-1] if self.segments else self._segment("content")
        for key, value in entries.items():
            touched.logprobs.setdefault(key, []).extend(value)

    def _segment(self, family: str, names: Set[str] = frozenset()) -> Segment:
        """The segment that is growing, if it is of this family and has its texts under these names; else a
        new one. A text under two names is one text, and under another name it is another."""
        last = self.segments[-1] if self.segments else None
        if last is None or last.family != family or (last.texts and last.texts.keys() != names):
            last = Segment(family)
            self.segments.append(last)
        return last

    def text(self, *keys: str) -> str:
        """The whole text that goes by these names. What stands under several of them is said once."""
        told: list[str] = []
        for segment in self.segments:
            told += next((segment.texts[key] for key in keys if key in segment.texts), ())
        return "".join(told)

    def calls(self) -> list[Call]:
        """Whole calls, pieced together over the segments, by index; a legacy function call last."""
        whole: dict[tuple[str, int], Call] = {}
        for segment in self.segments:
            for call in segment.calls.values():
                into = whole.setdefault((segment.family, call.index), Call(call.index, call.kind))
                into.kind = into.kind or call.kind
                into.grow_called({"name": call.name, "arguments": call.arguments}, "arguments")
        return [whole[key] for key in sorted(whole, key=lambda key: (key[0] != "tool_calls", key[1]))]

    def result(self) -> list[Json]:
        calls: list[Json] = [[call.kind, call.name, call.arguments] for call in self.calls()]
        texts = (self.text("content"), self.text("reasoning_content", "reasoning"), self.text("refusal"))
        return [Number(str(self.index)), *texts, calls, self.finish_reason]

    def chunks(self) -> Iterator[dict[str, Json]]:
        """This choice as chunks, none of which says anything twice."""
        head: dict[str, Json] = {} if self.role is None else {"role": self.role}
        # An empty text differs from none at all only where no text of that name follows.
        head.update({key: "" for key in sorted(self.seen_texts) if not self.text(key)})
        bare = not head and not self.segments and self.finish_reason is None
        if head or bare:
            yield self._chunk(head)
        for segment in self.segments:
            beside = dict(segment.beside)
            if segment.logprobs:
                beside["logprobs"] = {key: [*value] for key, value in segment.logprobs.items()}
            yield self._chunk(segment.delta(), beside=beside)
        if self.finish_reason is not None:
            yield self._chunk({}, self.finish_reason, self.beside_finish)

    def _chunk(
        self, delta: dict[str, Json], finish: Json = None, beside: dict[str, Json] | None = None
    ) -> dict[str, Json]:
        index = Number(str(self.index))
        return {"choices": [{"index": index, "delta": delta, **(beside or {}), "finish_reason": finish}]}


@dataclass(slots=True)
class Log:
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Json = None
    beside: dict[str, list[Json]] = field(default_factory=dict)

    def grow(self, chunk: dict[str, Json]) -> None:
        choices = chunk.get("choices")
        for place, choice in enumerate(choices if isinstance(choices, list) else ()):
            if not isinstance(choice, dict):
                raise MalformedLog("a choice is not an object")
            index = _index(choice, place)
            self.choices.setdefault(index, Choice(index)).grow(choice)
        if chunk.get("usage") is not None:
            self.usage = chunk["usage"]
        beside = _present(chunk, RUN_NOISE | _CHUNK_KEYS)
        if chunk.get("object") == _BARE_ERROR:
            beside = {"error": chunk}
        for key, value in beside.items():
            values = self.beside.setdefault(key, [])
            if value not in values:
                values.append(value)

    def in_order(self) -> list[Choice]:
        return [self.choices[index] for index in sorted(self.choices)]

    def stamped(self, chunks: list[dict[str, Json]]) -> Iterator[dict[str, Json]]:
        """Puts what stands beside the choices on the first chunk, further values of it on chunks of their
        own."""
        keys = sorted(self.beside)
        first: dict[str, Json] = {key: self.beside[key][0] for key in keys}
        if not chunks and first:
            chunks = [{"choices": []}]
        for number, chunk in enumerate(chunks):
            yield {"object": _OBJECT, **(first if number == 0 else {}), **chunk}
            if number == 0:
                for key in keys:
                    for value in self.beside[key][1:]:
                        yield {"object": _OBJECT, key: value, "choices": []}


def read_log(items: Iterable[bytes]) -> Log:
    log = Log()
    for item in items:
        log.grow(parse_chunk(item))
    return log


def parse_chunk(item: bytes) -> dict[str, Json]:
    try:
        chunk = parse_text(item.decode())
    except (InvalidRequest, UnicodeDecodeError) as error:
        raise MalformedLog(f"an item is not JSON: {error}") from None
    if not isinstance(chunk, dict):
        raise MalformedLog("an item is not an object")
    return chunk


def error_in(chunk: dict[str, Json]) -> Json:
    """The error that stands in place of a chunk, or beside its choices."""
    if chunk.get("error") is not None:
        return chunk["error"]
    return {**chunk} if chunk.get("object") == _BARE_ERROR else None


def _index(value: dict[str, Json], place: int) -> int:
    index = value.get("index")
    if index is None:
        return place
    if not isinstance(index, Number) or not index.text.isdigit() or len(index.text) > _INDEX_DIGITS:
        raise MalformedLog("an index is not a natural number")
    return int(index.text)


def _present(value: dict[str, Json], known: Iterable[str]) -> dict[str, Json]:
    """What is there beside the known keys; null is nothing."""
    return {key: item for key, item in value.items() if item is not None and key not in known}


def _is_lists(logprobs: Json) -> bool:
    return isinstance(logprobs, dict) and all(
        value is None or isinstance(value, list) for value in logprobs.values()
    )
