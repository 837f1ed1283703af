"""Server-sent events, as engines speak them: a small incremental parser (WHATWG HTML §9.2.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_LINE_BYTES = 4 * 2**20
MAX_EVENT_BYTES = 8 * 2**20

_DATA = b"data: "
_BOM = b"\xef\xbb\xbf"


class MalformedStream(Exception):
    """The engine's stream is not what it should be. The message says how."""


class SseEvent(NamedTuple):
    """A tuple, since there is one for each token."""

    data: bytes
    event: str = "message"


@dataclass(slots=True)
class SseParser:
    """Takes bytes cut anywhere, gives whole events. An event that the stream's end cuts off is dropped."""

    max_line_bytes: int = MAX_LINE_BYTES
    max_event_bytes: int = MAX_EVENT_BYTES
    _tail: bytearray = field(default_factory=bytearray)
    _data: list[bytes] = field(default_factory=list)
    _data_bytes: int = 0
    _event: str = ""
    _at_start: bool = True
    _skip_lf: bool = False

    def lone(self, chunk: bytes) -> bytes | None:
        """What stands between the marks of an event in a chunk that begins and ends with them, as most do
        that hold a token; None for any other chunk. If there is no line break in it, it is the event's data;
        if it is not taken for that, the chunk is to be fed."""
        if (
            chunk[:6] != _DATA
            or chunk[-2:] != b"\n\n"
            or self._tail
            or self._data
            or self._event
            or len(chunk) > self.max_line_bytes
        ):
            return None
        self._at_start = self._skip_lf = False
        return chunk[6:-2]

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Raises MalformedStream when a line or an event is longer than allowed."""
        if not self._tail and not self._data and not self._event:
            plain = self._plain(chunk)
            if plain is not None:
                return plain
        if self._skip_lf and chunk:
            # The last chunk ended in CR; a LF that follows belongs to it.
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        self._tail += chunk
        if self._at_start:
            if len(self._tail) < len(_BOM) and _BOM.startswith(bytes(self._tail)):
                return []
            self._at_start = False
            if self._tail.startswith(_BOM):
                del self._tail[: len(_BOM)]
        return self._lines()

    def _plain(self, chunk: bytes) -> list[SseEvent] | None:
        """The common case: whole events of one line of data each. None for any other."""
        if (
            not chunk.startswith(_DATA)
            or not chunk.endswith(b"\n\n")
            or b"\r" in chunk
            or len(chunk) > min(self.max_line_bytes, self.max_event_bytes)
        ):
            return None
        events = chunk[len(_DATA) : -2].split(b"\n\n" + _DATA)
        if any(b"\n" in event for event in events):
            return None
        self._at_start = self._skip_lf = False
        return [SseEvent(event) for event in events]

    def _lines(self) -> list[SseEvent]:
        text = bytes(self._tail)
        if text.endswith(b"\r"):
            self._skip_lf = True
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._tail = bytearray(rest)
        if len(rest) > self.max_line_bytes:
            raise MalformedStream(f"a line is longer than {self.max_line_bytes} bytes")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> SseEvent | None:
        if len(line) > self.max_line_bytes:
            raise MalformedStream(f"a line is longer than {self.max_line_bytes} bytes")
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            if self._data_bytes > self.max_event_bytes:
                raise MalformedStream(f"an event is longer than {self.max_event_bytes} bytes")
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> SseEvent | None:
        data, event = self._data, self._event
        self._data, self._data_bytes, self._event = [], 0, ""
        return SseEvent(b"\n".join(data), event or "message") if data else None
