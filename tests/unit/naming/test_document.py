"""Strict JSON: what is refused, and what is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import MAX_DEPTH, Number, emit, parse_body
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(value=VALUES.filter(encodable), escaped=st.booleans(), indent=st.sampled_from([None, 0, 3]))
def test_a_document_is_emitted_with_its_key_order_and_numbers(
    value: Any, escaped: bool, indent: int | None
) -> None:
    source = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()
    assert emit(parse_body(source).value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_numbers_keep_their_spelling() -> None:
    source = b"[1, 1.0, 1e2, -0, 1E+2, 123456789012345678901234567890.10]"
    assert emit(parse_body(source).value) == "[1,1.0,1e2,-0,1E+2,123456789012345678901234567890.10]"
    assert parse_body(b"1.50").value == Number("1.50")


def test_escapes_and_characters_are_the_same_text() -> None:
    assert parse_body(rb'"\u0041\ud83d\ude00\/"').value == "A\U0001f600/"


def test_text_is_not_normalised() -> None:
    assert parse_body('"\u00e9"'.encode()).value != parse_body('"e\u0301"'.encode()).value


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"  ",
        b"{",
        b"nul",
        b'{"a":1,}',
        b"[1,]",
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"1 2",
        b'{"a":1} x',
        b'{"a":1,"a":1}',
        b'{"x":[{"\\u0061":1,"a":2}]}',
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b'"\\ud800"',
        b'{"\\uDfff":1}',
        b'["\\ude00\\ud83d"]',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"a\nb"',
        b"'a'",
        b"\xef\xbb\xbf{}",
        b'{"a":1}\x00',
        "{}".encode("utf-16"),
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        b"[" * 200_000,
    ],
    ids=lambda source: repr(source[:20]),
)
def test_what_two_readers_could_read_differently_is_refused(source: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_body(source)
    assert raised.value.reason == "invalid_json"
    assert raised.value.message


def test_depth_is_counted_in_levels_and_not_in_braces() -> None:
    parse_body(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    parse_body(json.dumps(["[{" * 1000, [[]] * 1000]).encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(source: bytes) -> None:
    try:
        value = parse_body(source).value
    except InvalidRequest:
        return
    assert parse_body(emit(value).encode()).value == value
