"""What an engine is asked for a Messages request."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from anthropic.types import (
    DocumentBlockParam,
    ImageBlockParam,
    SearchResultBlockParam,
    TextBlockParam,
    ThinkingBlockParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from dynbranch.bench.corpus.messages import ASKED, REFUSED
from dynbranch.bench.corpus.shapes import Asked, Object
from dynbranch.domain.errors import InvalidRequest
from dynbranch.gateway.protocols.anthropic import blocks, conversation, request
from dynbranch.naming.document import parse_body
from hypothesis import given
from hypothesis import strategies as st

FRAME: Object = {"model": "m", "max_tokens": 100}


def translated(asks: Object) -> Any:
    return json.loads(request.read_messages(json.dumps({**FRAME, **asks}).encode()).source)


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_what_the_engine_is_asked(case: Asked) -> None:
    assert translated(case.asks) == {**FRAME, **case.chat}


def test_no_case_stands_twice() -> None:
    names = [case.name for case in ASKED]
    assert len(names) == len(set(names)) >= 40


@pytest.mark.promise("H.messages")
@pytest.mark.parametrize(
    ("asks", "param"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_can_not_be_served_is_refused_by_name(asks: Object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translated(asks)
    assert refused.value.facts["param"] == param
    assert f"'{param}'" in refused.value.message


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_the_text_and_the_value_are_one(case: Asked) -> None:
    document = request.read_messages(json.dumps({**FRAME, **case.asks}).encode())
    assert parse_body(document.source).value == document.value


def test_key_order_and_the_spelling_of_numbers_stay() -> None:
    body = (
        b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":'
        b'[{"type":"tool_use","id":"t","name":"n","input":{"b":1.50,"a":1e2}}]}],'
        b'"tools":[{"name":"n","input_schema":{"z":1.0,"type":"object"}}]}'
    )
    source = request.read_messages(body).source
    assert rb'"arguments":"{\"b\":1.50,\"a\":1e2}"' in source
    assert b'"parameters":{"z":1.0,"type":"object"}' in source


@given(st.integers(0, 6), st.randoms(use_true_random=False))
def test_results_of_parallel_calls_may_come_in_any_order(count: int, chance: Any) -> None:
    ids = [f"toolu_{number}" for number in range(count)]
    uses = [{"type": "tool_use", "id": one, "name": "n", "input": {}} for one in ids]
    results = [{"type": "tool_result", "tool_use_id": one, "content": one} for one in ids]
    shuffled = chance.sample(results, len(results))

    def conversed(order: list[Object]) -> Any:
        said = [{"type": "text", "text": "x"}]
        return translated(
            {
                "messages": [
                    {"role": "user", "content": "go"},
                    {"role": "assistant", "content": [*said, *uses]},
                    {"role": "user", "content": [*order, *said]},
                ]
            }
        )

    assert conversed(shuffled) == conversed(results)


# -- the vendor's types --------------------------------------------------------------------------------------


def test_every_field_of_the_vendors_request_has_its_class() -> None:
    known = request.TRANSLATED | request.IDENTITY | request.UNSERVED.keys()
    goes_on = {"context_management"}
    headers = {"betas"}
    vendors = set(get_type_hints(MessageCreateParamsBase)) - headers
    assert vendors - known == goes_on


@pytest.mark.parametrize(
    ("vendors", "known", "goes_on"),
    [
        (TextBlockParam, blocks.TEXT_MEMBERS, set()),
        (ImageBlockParam, blocks.IMAGE_MEMBERS, set()),
        (DocumentBlockParam, blocks.DOCUMENT_MEMBERS, set()),
        (SearchResultBlockParam, blocks.SEARCH_RESULT_MEMBERS, set()),
        (ThinkingBlockParam, conversation.THINKING_MEMBERS, set()),
        (ToolUseBlockParam, conversation.CALL_MEMBERS, {"toolset_name"}),
        (ToolResultBlockParam, conversation.RESULT_MEMBERS, {"toolset_name"}),
        (ToolParam, request.TOOL_MEMBERS, {"strict", "input_examples"}),
    ],
)
def test_every_member_of_the_vendors_blocks_is_known(
    vendors: Any, known: frozenset[str], goes_on: set[str]
) -> None:
    assert set(get_type_hints(vendors)) - known == goes_on


@pytest.mark.parametrize("digits", ["1" + "0" * 5000, "9" * 5000])
def test_a_limit_of_thousands_of_digits_is_the_engines_to_judge(digits: str) -> None:
    body = f'{{"model":"m","max_tokens":{digits},"messages":[{{"role":"user","content":"x"}}]}}'.encode()
    for read in (request.read_messages, request.read_for_counting):
        assert f'"max_tokens":{digits}'.encode() in read(body).source


@pytest.mark.parametrize("text", ["", "x-anthropic-billing-header: x"])
def test_a_conversation_that_says_nothing_is_refused(text: str) -> None:
    nothing = {"role": "system", "content": text}
    with pytest.raises(InvalidRequest) as refused:
        translated({"messages": [nothing, nothing], "system": text})
    assert refused.value.facts["param"] == "messages"
    assert translated({"messages": [nothing], "system": "x"})["messages"]
