"""One suite for every store behind the ``KeyValue`` boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from dynbranch.csl.core.store import Batch, Transaction
from dynbranch.csl.key_value import GuardFailed, KeyValue, MemoryKeyValue, StoreClosed
from dynbranch.csl.rocks import RocksKeyValue, Sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SIZES = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
WITH_ROCKSDB_PY = pytest.param(
    "rocksdb-py",
    marks=pytest.mark.skipif(
        find_spec("rocksdbpy") is None, reason="rocksdb-py is not installed; make test-rocksdb-py runs this"
    ),
)


def opened(kind: str, path: Path) -> KeyValue:
    match kind:
        case "memory":
            return MemoryKeyValue()
        case "rocks":
            return RocksKeyValue(path, sizes=SIZES)
        case _:
            from dynbranch.csl.rocksdb_py import RocksDbPyKeyValue

            return RocksDbPyKeyValue(path, sizes=SIZES)


@pytest.fixture(params=["memory", "rocks", WITH_ROCKSDB_PY])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], KeyValue]]:
    made: list[KeyValue] = []

    def build() -> KeyValue:
        store = opened(request.param, tmp_path / f"db{len(made)}")
        made.append(store)
        return store

    yield build
    for store in made:
        store.close()


@pytest.fixture
def store(make: Callable[[], KeyValue]) -> KeyValue:
    return make()


def test_a_batch_puts_and_deletes(store: KeyValue) -> None:
    store.apply(Batch({b"a": b"1", b"b": b"2"}))
    store.apply(Batch({b"a": None, b"c": b"", b"absent": None}))
    assert [store.get(key) for key in (b"a", b"b", b"c", b"absent")] == [None, b"2", b"", None]


def test_a_scan_is_ordered_and_ends_with_its_prefix(store: KeyValue) -> None:
    rows = {bytes([space, key]): b"v" for space in (1, 2, 255) for key in (0, 7, 255)}
    store.apply(Batch(rows))
    assert [key for key, _ in store.scan(b"\x02")] == [b"\x02\x00", b"\x02\x07", b"\x02\xff"]
    assert [key for key, _ in store.scan(b"\x02", b"\x07")] == [b"\x02\x07", b"\x02\xff"]
    assert [key for key, _ in store.scan(b"\xff")] == [b"\xff\x00", b"\xff\x07", b"\xff\xff"]
    assert [key for key, _ in store.scan(b"\xff\xff")] == [b"\xff\xff"]
    assert [key for key, _ in store.scan(b"")] == sorted(rows)
    assert list(store.scan(b"\x03")) == []


def test_a_page_is_the_beginning_of_a_scan(store: KeyValue) -> None:
    store.apply(Batch({bytes([space, key]): b"v" for space in (1, 2) for key in range(5)}))
    for prefix, start in (
        (b"\x01", b""),
        (b"\x01", b"\x03"),
        (b"\x02", b""),
        (b"", b"\x01\x04"),
        (b"\x09", b""),
    ):
        for at_most in (0, 1, 3, 100):
            expected = list(store.scan(prefix, start))[:at_most]
            assert store.page(prefix, start, at_most) == expected
            with store.frozen() as view:
                assert view.page(prefix, start, at_most) == expected
            assert Transaction(store).page(prefix, start, at_most) == expected


def test_a_store_that_is_not_full_has_nothing_to_reclaim(store: KeyValue) -> None:
    store.apply(Batch({b"a": b"1"}))
    store.reclaim()
    assert store.get(b"a") == b"1"


def test_a_failed_guard_writes_nothing(store: KeyValue) -> None:
    store.apply(Batch({b"a": b"1"}))
    for guards in ({b"a": b"2"}, {b"a": None}, {b"absent": b"1"}):
        with pytest.raises(GuardFailed):
            store.apply(Batch({b"b": b"x"}, guards))
    assert store.get(b"b") is None
    store.apply(Batch({b"b": b"x"}, {b"a": b"1", b"absent": None}))
    assert store.get(b"b") == b"x"


def test_a_frozen_view_does_not_see_later_batches(store: KeyValue) -> None:
    store.apply(Batch({b"a": b"1", b"b": b"1"}))
    with store.frozen() as view:
        store.apply(Batch({b"a": b"2", b"b": None, b"c": b"2"}))
        assert [view.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"1", None]
        assert list(view.scan(b"")) == [(b"a", b"1"), (b"b", b"1")]
    assert store.get(b"a") == b"2"


def test_a_frozen_view_stands_still_between_and_during_its_scans(store: KeyValue) -> None:
    before = {bytes([key]): b"1" for key in range(6)}
    store.apply(Batch(before))
    with store.frozen() as view:
        store.apply(Batch({b"\x00": None, b"\x01": b"2", b"\x03\x03": b"new"}))
        scan = view.scan(b"")
        seen = [next(scan)]
        store.apply(Batch({b"\x01": b"3", b"\x02": None, b"\x04": b"3", b"\x09": b"new"}))
        seen += scan
        assert dict(seen) == before and len(seen) == 6
        assert view.page(b"", b"\x02", 3) == [(bytes([key]), b"1") for key in (2, 3, 4)]
        assert [view.get(key) for key in (b"\x00", b"\x02", b"\x09")] == [b"1", b"1", None]
        with store.frozen() as later:
            store.apply(Batch({b"\x00": b"4", b"\x05": None}))
            assert later.get(b"\x00") is None and later.get(b"\x05") == b"1"
            assert dict(view.scan(b"")) == before
    assert [key for key, _ in store.scan(b"")] == [b"\x00", b"\x01", b"\x03", b"\x03\x03", b"\x04", b"\x09"]


def test_a_scan_may_be_left_early_and_the_store_still_closes(store: KeyValue) -> None:
    store.apply(Batch({bytes([key]): b"v" for key in range(10)}))
    scan = store.scan(b"")
    next(scan)
    store.sync()
    store.close()
    with pytest.raises(StoreClosed):
        list(scan)


def test_a_closed_store_says_so(store: KeyValue) -> None:
    store.close()
    store.close()
    for use in (
        lambda: store.get(b"a"),
        lambda: list(store.scan(b"")),
        lambda: store.apply(Batch({b"a": b"1"})),
        store.sync,
    ):
        with pytest.raises(StoreClosed):
            use()


KEYS = st.binary(min_size=1, max_size=3).map(lambda key: bytes(byte % 4 for byte in key))
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=6)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=st.lists(CHANGES, max_size=5), staged=CHANGES, prefix=st.binary(max_size=1), start=KEYS)
def test_it_behaves_like_a_dictionary_and_a_transaction_like_an_overlay(
    make: Callable[[], KeyValue],
    batches: list[dict[bytes, bytes | None]],
    staged: dict[bytes, bytes | None],
    prefix: bytes,
    start: bytes,
) -> None:
    store, expected = make(), {}
    for changes in batches:
        store.apply(Batch(changes))
        expected.update(changes)
    live = {key: value for key, value in expected.items() if value is not None}
    assert dict(store.scan(b"")) == live
    transaction = Transaction(store)
    for key, value in staged.items():
        if value is None:
            transaction.delete(key)
        else:
            transaction.put(key, value)
    merged = {key: value for key, value in {**live, **staged}.items() if value is not None}
    seen = [row for row in sorted(merged.items()) if row[0].startswith(prefix) and row[0] >= prefix + start]
    assert list(transaction.scan(prefix, start)) == seen
    store.apply(transaction.batch())
    assert dict(store.scan(b"")) == merged
    store.close()
