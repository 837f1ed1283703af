"""The store's log files before they are opened: a damaged length that would pass for a torn tail.

RocksDB checks every record of its log and of its manifest, but a record that seems to reach beyond the end of
the file is taken for one that a crash has cut short, and is dropped with all that follows it. One flipped bit
in a length does that to records that were durable. Here such a tail is looked at again: bytes that are whole
under a shorter length are no torn record but a damaged one.

Format: blocks of 32 KiB; a record never crosses one, and has a masked CRC-32C of its type and its bytes (4
bytes), its length (2), its type (1), all little-endian, then the bytes. Fewer than 7 bytes at the end of a
block are padding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def problems(database: Path) -> Iterator[str]:
    """What is wrong with the tails of the log files; nothing, if a crash explains them."""
    logs = sorted(path for path in database.glob("*.log") if path.stat().st_size)
    for path in logs:
        tail = torn_tail(path)
        if tail is None:
            continue
        if hides_whole_record(tail):
            yield f"{path.name} has a damaged length near its end"
        elif path != logs[-1]:
            yield f"{path.name} is cut short, and a later log has records"
    for path in sorted(database.glob("MANIFEST-*")):
        tail = torn_tail(path)
        if tail is not None and hides_whole_record(tail):
            yield f"{path.name} has a damaged length near its end"


def torn_tail(path: Path) -> bytes | None:
    """The last record, from its header on, if it seems to reach beyond the end of the file."""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            at = 0
            while at + _HEADER.size <= len(block):
                _, length, _ = _HEADER.unpack_from(block, at)
                end = at + _HEADER.size + length
                if end > len(block):
                    # In a whole block RocksDB itself sees that a length can not be.
                    return block[at:] if len(block) < BLOCK_BYTES or not file.read(1) else None
                at = end
    return None


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
