"""Ids and points in time. Distinct types, so that a name never passes for a lease."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType

Name = NewType("Name", bytes)
"""A reuse name: 32 bytes."""

DemandId = NewType("DemandId", bytes)
LeaseId = NewType("LeaseId", bytes)
GenerationId = NewType("GenerationId", bytes)
BranchId = NewType("BranchId", bytes)
TrialId = NewType("TrialId", bytes)
FillId = NewType("FillId", bytes)
Digest = NewType("Digest", bytes)
"""A SHA-256 of content."""

RecordId = NewType("RecordId", str)
"""An external thing that a stage may read: ``source/key``, or ``source/*`` for the whole collection."""

Instant = NewType("Instant", float)
"""Seconds on a monotonic clock. Only differences mean anything."""

UnixMs = NewType("UnixMs", int)
"""Milliseconds since 1970, for people; never used to order events."""

_SOURCE = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_RECORD_KEY_BYTES = 1024
WHOLE = "*"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A point in the store's history. Epochs compare first: an old epoch's token never commits."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"


NEVER = Version(0, 0)
"""Older than every write."""


class InvalidId(ValueError):
    """A text that is not the id it should be. The message says what is expected."""


def parse_record(text: str) -> RecordId:
    """Check ``source/key``. Raises InvalidId."""
    source, slash, key = text.partition("/")
    if not slash or not key:
        raise InvalidId(f"record {text[:80]!r} is not 'source/key'")
    if not _SOURCE.fullmatch(source):
        raise InvalidId(f"source {source[:80]!r} of a record may hold letters, digits, '_', '.', '-' only")
    if "\0" in key or len(key.encode("utf-8", "surrogatepass")) > MAX_RECORD_KEY_BYTES:
        raise InvalidId(f"the key of a record holds a NUL or is longer than {MAX_RECORD_KEY_BYTES} bytes")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidId("a record id holds a lone surrogate") from None
    return RecordId(text)


def source_of(record: RecordId) -> str:
    return record.partition("/")[0]


def whole(source: str) -> RecordId:
    """The record that stands for every record of a source."""
    return RecordId(f"{source}/{WHOLE}")


def is_whole(record: RecordId) -> bool:
    return record.endswith("/" + WHOLE) and record.count("/") == 1


def parse_version(text: str) -> Version:
    """Read ``epoch.sequence``. Raises InvalidId."""
    match = re.fullmatch(r"(\d{1,19})\.(\d{1,19})", text)
    if match is None:
        raise InvalidId(f"version {text[:80]!r} is not 'epoch.sequence'")
    return Version(int(match[1]), int(match[2]))
