"""The store's log files before they are opened: what RocksDB would take for the marks of a crash, and is not.

RocksDB checks every record of its log and of its manifest, but a record that seems to reach beyond the end of
the file is taken for one that a crash has cut short, and is dropped with all that follows it. One flipped bit
in a length does that to records that were durable. Here such a tail is looked at again: bytes that are whole
under a shorter length are no torn record but a damaged one.

Format: a record holds a batch, which begins with the number of its first change (8 bytes) and the count of
them (4). Blocks of 32 KiB; a record never crosses one, and has a masked CRC-32C of its type and its bytes (4
bytes), its length (2), its type (1), all little-endian, then the bytes. Fewer than 7 bytes at the end of a
block are padding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


_BATCH_HEAD = struct.Struct("<QI")
_FULL, _FIRST, _LAST = 1, 2, 4


def problems(database: Path) -> Iterator[str]:
    """What is wrong with the log files; nothing, if a crash explains them."""
    ends: int | None = None
    for path in sorted(database.glob("*.log")):
        log = read_log(path)
        if log.tail is not None and hides_whole_record(log.tail):
            yield f"{path.name} has a damaged length near its end"
        if log.first is None or log.next is None:
            continue
        if ends is not None and log.first != ends:
            yield f"{path.name} begins with change {log.first}, the log before ends at {ends}"
        ends = log.next
    for path in sorted(database.glob("MANIFEST-*")):
        tail = read_log(path).tail
        if tail is not None and hides_whole_record(tail):
            yield f"{path.name} has a damaged length near its end"


@dataclass(slots=True)
class LogFile:
    """Number of the first change and of the one after the last, None without a whole record; and the last
    record, from its header on, if it seems to reach beyond the end of the file.

    The numbers mean nothing for a manifest.
    """

    first: int | None = None
    next: int | None = None
    tail: bytes | None = None


def read_log(path: Path) -> LogFile:
    log, following = LogFile(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            at = 0
            while at + _HEADER.size <= len(block):
                _, length, kind = _HEADER.unpack_from(block, at)
                start = at + _HEADER.size
                if start + length > len(block):
                    # In a whole block RocksDB itself sees that a length can not be.
                    if len(block) < BLOCK_BYTES or not file.read(1):
                        log.tail = block[at:]
                    return log
                if kind in (_FULL, _FIRST) and length >= _BATCH_HEAD.size:
                    number, changes = _BATCH_HEAD.unpack_from(block, start)
                    following = number + changes
                    log.first = number if log.first is None else log.first
                if kind in (_FULL, _LAST):
                    log.next = following
                at = start + length
    return log


def hides_whole_record(tail: bytes) -> bool:
    """Whether some shorter length makes the record's checksum right."""
    expected = _unmasked(_HEADER.unpack_from(tail)[0])
    table = _table()
    crc = table[(0xFFFFFFFF ^ tail[6]) & 0xFF] ^ (0xFFFFFFFF >> 8)
    if crc ^ 0xFFFFFFFF == expected:
        return True
    for byte in memoryview(tail)[_HEADER.size :]:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        if crc ^ 0xFFFFFFFF == expected:
            return True
    return False


def _unmasked(masked: int) -> int:
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    """CRC-32C by bytes. Made anew each time: it is needed once per damaged or torn log."""
    made = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        made.append(crc)
    return tuple(made)
