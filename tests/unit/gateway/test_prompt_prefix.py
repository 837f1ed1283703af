"""What two prompts have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.gateway.core.prompt_prefix import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    NO_PREFIX,
    PromptPrefix,
    blocks_of_tokens,
    prompt_prefix,
    read_hint,
)
from dynbranch.naming.document import parse_body
from hypothesis import given
from hypothesis import strategies as st

SYSTEM = {"role": "system", "content": "You are exact. " * 60}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 1.50}}}]


def prefix(messages: list[Any], salt: str = "", **fields: Any) -> PromptPrefix:
    body = json.dumps({"messages": messages, **fields}).encode()
    return prompt_prefix(parse_body(body).value, salt)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def shared(one: PromptPrefix, other: PromptPrefix) -> int:
    return sum(a == b for a, b in zip(one.blocks, other.blocks, strict=False))


@given(st.lists(st.text(max_size=700), min_size=1, max_size=6), st.text(max_size=700))
def test_a_longer_conversation_begins_with_the_shorter_one(texts: list[str], more: str) -> None:
    messages = [SYSTEM, *map(user, texts)]
    short, long = prefix(messages), prefix([*messages, user(more)])
    assert long.blocks[: len(short.blocks)] == short.blocks
    assert (long.family, long.opening) == (short.family, short.opening)


def test_what_comes_later_does_not_change_what_came_before() -> None:
    one, other = prefix([SYSTEM, user("a" * 900)]), prefix([SYSTEM, user("b" * 900)])
    assert 0 < shared(one, other) < len(one.blocks)
    assert one.family == other.family and one.opening != other.opening
    at_first = shared(one, other)
    assert not set(one.blocks[at_first:]) & set(other.blocks[at_first:])


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": [*TOOLS, *TOOLS]},
        {"tools": None},
        {"salt": "another"},
        {"messages": [{**SYSTEM, "role": "developer"}, user("x")]},
    ],
)
def test_what_makes_another_family(changed: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"messages": [SYSTEM, user("x")], "tools": TOOLS, "salt": ""}
    one, other = prefix(**plain), prefix(**{**plain, **changed})
    assert one.family != other.family and not shared(one, other)


def test_instructions_that_fill_no_block_make_no_family() -> None:
    short = {"role": "system", "content": "Be kind."}
    one, other = prefix([short, user("a")]), prefix([short, user("b")])
    assert one.family == one.opening != other.family


def test_a_hint_is_read_back() -> None:
    one = prefix([SYSTEM, user("a")])
    assert read_hint(one.hint) == (one.family, one.opening)
    assert read_hint(NO_PREFIX.hint) is None is read_hint(b"x" * 17)


def test_fields_that_no_prompt_shows_change_nothing() -> None:
    messages = [SYSTEM, user("x")]
    assert prefix(messages, temperature=0) == prefix(messages, temperature=1, model="m", stream=True)


def test_every_kind_of_message_counts() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    parts = {"role": "user", "content": [{"type": "text", "text": "x" * 300}]}
    assert prefix([call, parts]).blocks and prefix([call, parts]) != prefix([parts, call])


def test_a_prompt_of_any_size_has_a_bounded_number_of_blocks() -> None:
    large = prefix([user("x" * (BLOCK_BYTES * (MAX_BLOCKS + 100)))])
    assert len(large.blocks) == MAX_BLOCKS
    assert prefix([user("short")]).blocks == ()


@pytest.mark.parametrize("body", ["[]", "null", '{"messages": 1}', "{}"])
def test_what_is_no_conversation_has_no_beginning(body: str) -> None:
    assert prompt_prefix(parse_body(body.encode()).value, "") == NO_PREFIX


def test_lone_surrogates_break_nothing() -> None:
    assert prompt_prefix({"messages": [{"role": "user", "content": "\ud800" * 300}]}, "").blocks


def test_an_engine_has_room_for_at_least_one_block() -> None:
    assert (blocks_of_tokens(1), blocks_of_tokens(6400)) == (1, 100)
