"""The rows in memory are in order at any number of them, also while somebody reads them."""

from __future__ import annotations

from random import Random

from dynbranch.csl.core.store import Batch
from dynbranch.csl.key_value import MemoryKeyValue


def test_many_rows_stay_in_order() -> None:
    chance, rows, known = Random(1), MemoryKeyValue(), dict[bytes, bytes]()
    for _ in range(6_000):
        key = chance.randrange(8_000).to_bytes(2, "big")
        change = chance.randbytes(1) if chance.random() < 0.7 else None
        rows.apply(Batch({key: change}))
        known.pop(key, None)
        if change is not None:
            known[key] = change
    assert list(rows.scan(b"")) == sorted(known.items())
    assert (
        rows.page(b"\x05", b"\x80", 50)
        == [
            (key, value) for key, value in sorted(known.items()) if key[:1] == b"\x05" and key >= b"\x05\x80"
        ][:50]
    )
    for key in known:
        rows.apply(Batch({key: None}))
    assert list(rows.scan(b"")) == []


def test_who_reads_sees_what_is_there_when_it_comes_by() -> None:
    rows = MemoryKeyValue()
    rows.apply(Batch({number.to_bytes(2, "big"): b"" for number in range(0, 5_000, 2)}))
    seen = []
    for key, _ in rows.scan(b""):
        number = int.from_bytes(key, "big")
        seen.append(number)
        if number % 100 == 0:
            rows.apply(Batch({(number + 3).to_bytes(2, "big"): b"", (number + 4).to_bytes(2, "big"): None}))
    assert seen == sorted(seen)
    assert all(number + 3 in seen and number + 4 not in seen for number in range(0, 4_900, 100))
