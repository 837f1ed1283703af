"""How texts, bytes and versions lie inside the value of a row: from left to right, each with its length."""

from __future__ import annotations

import struct

from dynbranch.csl.core.store import Inconsistent
from dynbranch.domain.ids import Name, Version
from dynbranch.domain.reuse import Incarnation

U16 = struct.Struct(">H")
VERSION = struct.Struct(">QQ")
INCARNATION = struct.Struct(">32sQ")


class Cursor:
    """Reads a value from left to right. Raises Inconsistent when it ends early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[object, ...]:
        try:
            values = form.unpack_from(self._data, self._at)
        except struct.error:
            raise Inconsistent("a row is shorter than its format") from None
        self._at += form.size
        return values

    def number(self, form: struct.Struct = U16) -> int:
        value = self.take(form)[0]
        assert isinstance(value, int)
        return value

    def bytes(self) -> bytes:
        size = self.number()
        value = self._data[self._at : self._at + size]
        if len(value) != size:
            raise Inconsistent("a row is shorter than its format")
        self._at += size
        return value

    def text(self) -> str:
        return decoded(self.bytes())

    def version(self) -> Version:
        epoch, sequence = self.take(VERSION)
        assert isinstance(epoch, int) and isinstance(sequence, int)
        return Version(epoch, sequence)

    def incarnation(self) -> Incarnation:
        name, number = self.take(INCARNATION)
        assert isinstance(name, bytes) and isinstance(number, int)
        return Incarnation(Name(name), number)

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def end(self) -> None:
        if not self.at_end:
            raise Inconsistent("a row is longer than its format")


def sized(data: bytes) -> bytes:
    return U16.pack(len(data)) + data


def text_bytes(text: str) -> bytes:
    return sized(text.encode("utf-8", "surrogatepass"))


def decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Inconsistent("a text in a row is not one") from None
