"""Chunks that are recognised say what a parser would read in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.naming.text_pieces import TextPieces
from hypothesis import given
from hypothesis import strategies as st

HEAD: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m"}


def chunk(text: str, *, compact: bool = True, ascii_only: bool = False, **choice: Any) -> bytes:
    body = {**HEAD, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(body, separators=separators, ensure_ascii=ascii_only).encode()


def learned(data: bytes) -> TextPieces:
    pieces = TextPieces()
    pieces.learn(data, json.loads(data))
    return pieces


@given(st.text(), st.text(), st.booleans(), st.booleans())
def test_a_recognised_chunk_says_what_its_value_says(
    first: str, second: str, compact: bool, ascii_only: bool
) -> None:
    try:
        data = chunk(second, compact=compact, ascii_only=ascii_only)
        pieces = learned(chunk(first, compact=compact, ascii_only=ascii_only))
    except UnicodeEncodeError:
        return
    piece = pieces.piece_of(data)
    if piece is not None:
        assert json.loads(b'"' + piece + b'"') == second
    elif first and "\\" not in json.dumps(first + second, ensure_ascii=ascii_only):
        raise AssertionError("a plain piece after a plain piece is recognised")


@given(st.binary(max_size=40))
def test_whatever_is_recognised_is_json(piece: bytes) -> None:
    """Bytes between the ones that were learned are only ever taken for a text if they are one."""
    whole = chunk("MARK")
    data = whole.replace(b"MARK", piece)
    if learned(whole).piece_of(data) is not None:
        read = json.loads(data)
        assert read["choices"][0]["delta"].keys() == {"content"}
        read["choices"][0]["delta"]["content"] = "MARK"
        assert read == json.loads(whole)


@pytest.mark.parametrize(
    "data",
    [
        chunk("x", finish_reason="stop"),
        chunk("x", logprobs={"content": []}),
        chunk("x", token_ids=[1]),
        chunk("x").replace(b'"content"', b'"reasoning"'),
        chunk("x").replace(b'"content":"x"', b'"content":"x","tool_calls":[]'),
        chunk("x").replace(b'"model":"m"', b'"model":"m","usage":{"prompt_tokens":1}'),
        chunk("x").replace(b'"content"', b'"c\\u006fntent"').replace(b'"m"', b'"m","y":{"content":"x"}'),
        chunk("x").replace(b'"delta":{"content":"x"}', b'"delta":{"content":"y","content":"x"}'),
        b'{"choices":[]}',
    ],
)
def test_a_chunk_that_says_more_teaches_nothing(data: bytes) -> None:
    assert learned(data).piece_of(data) is None


def test_halves_of_a_pair_are_left_to_a_parser() -> None:
    assert learned(chunk("x")).piece_of(chunk("x").replace(b'"x"', b'"\\ud83d"')) is None


def test_what_was_learned_goes_with_the_next_chunk_that_is_parsed() -> None:
    pieces = learned(chunk("x"))
    other = chunk("", finish_reason="stop")
    pieces.learn(other, json.loads(other))
    assert pieces.piece_of(chunk("x")) is None
