"""What an engine is asked for a Responses request."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from dynbranch.bench.corpus.responses import (
    ASKED,
    REFUSED,
    SPACE,
    TOOL,
    asks,
    item,
    result,
    wants,
)
from dynbranch.bench.corpus.shapes import Asked, Object
from dynbranch.domain.errors import InvalidRequest
from dynbranch.gateway.protocols.responses import content, conversation, request, tools
from dynbranch.naming.document import parse_body
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import (
    ResponseFunctionToolCallParam,
    ResponseInputFileParam,
    ResponseInputImageParam,
    ResponseInputTextParam,
    ResponseOutputMessageParam,
    ResponseOutputTextParam,
    ResponseReasoningItemParam,
)
from openai.types.responses.function_tool_param import FunctionToolParam
from openai.types.responses.namespace_tool_param import NamespaceToolParam
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_input_item_param import FunctionCallOutput


def read(fields: Object) -> request.AskedResponse:
    return request.read_responses(json.dumps({"model": "m", **fields}).encode())


def translated(fields: Object) -> Any:
    return json.loads(read(fields).source)


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_what_the_engine_is_asked(case: Asked) -> None:
    assert translated(case.asks) == {"model": "m", **case.chat}


def test_no_case_stands_twice() -> None:
    names = [case.name for case in ASKED]
    assert len(names) == len(set(names)) >= 40


@pytest.mark.promise("H.responses")
@pytest.mark.parametrize(
    ("fields", "param"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_can_not_be_served_is_refused_by_name(fields: Object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translated(fields)
    assert refused.value.facts["param"] == param
    assert f"'{param}'" in refused.value.message


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_the_text_and_the_value_are_one(case: Asked) -> None:
    document = read(case.asks)
    assert parse_body(document.source).value == document.value


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_an_answer_repeats_what_was_asked(case: Asked) -> None:
    repeated = json.loads(b"{" + read(case.asks).repeated.fields + b"}")
    for key in ("instructions", "temperature", "top_p", "max_output_tokens", "tools", "tool_choice", "text"):
        if case.asks.get(key) is not None:
            assert repeated[key] == case.asks[key]
    assert "store" not in repeated


def test_what_no_engine_has_is_left_out_and_told() -> None:
    searches = [{"type": kind} for kind in ("web_search", "web_search_preview_2025_03_11", "web_search")]
    repeated = read({"input": "hi", "tools": [*searches, TOOL, SPACE]}).repeated
    assert repeated.left_out == ("web_search", "web_search_preview_2025_03_11")
    assert repeated.namespaced == {"crew__read": ("crew", "read")}


def test_reasoning_that_was_sealed_here_is_read_again() -> None:
    sealed = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "dynbranch.held.1.SG0u"}
    chat = translated(asks(item("user", "hi"), sealed, item("assistant", "ho")))
    assert chat["messages"][1] == {"role": "assistant", "content": "ho", "reasoning_content": "Hm."}


def test_key_order_and_the_spelling_of_numbers_stay() -> None:
    body = (
        b'{"model":"m","input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"c","name":"n",'
        b'"arguments":"{\\"b\\":1.50,\\"a\\":1e2}"}],'
        b'"tools":[{"type":"function","name":"n","parameters":{"z":1.0,"type":"object"}}]}'
    )
    source = request.read_responses(body).source
    assert rb'"arguments":"{\"b\":1.50,\"a\":1e2}"' in source
    assert b'"parameters":{"z":1.0,"type":"object"}' in source


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_results_of_parallel_calls_may_come_in_any_order(count: int, chance: Any) -> None:
    ids = [f"c{number}" for number in range(count)]
    results = [result(one, one) for one in ids]

    def conversed(order: list[Object]) -> Any:
        return translated(asks(item("user", "go"), *map(wants, ids), *order, item("user", "x")))

    assert conversed(chance.sample(results, len(results))) == conversed(results)


# -- the vendor's types --------------------------------------------------------------------------------------


def test_every_field_of_the_vendors_request_has_its_class() -> None:
    known = request.TRANSLATED | request.IDENTITY | request.UNSERVED.keys()
    assert set(get_type_hints(ResponseCreateParamsBase)) - known == set()


@pytest.mark.parametrize(
    ("vendors", "known", "goes_on"),
    [
        (ResponseInputTextParam, content.INPUT_TEXT_MEMBERS, set()),
        (ResponseOutputTextParam, content.OUTPUT_TEXT_MEMBERS, set()),
        (ResponseInputImageParam, content.IMAGE_MEMBERS, set()),
        (ResponseInputFileParam, content.FILE_MEMBERS, set()),
        (ResponseReasoningItemParam, conversation.REASONING_MEMBERS, set()),
        (ResponseFunctionToolCallParam, conversation.CALL_MEMBERS, set()),
        (FunctionCallOutput, conversation.RESULT_MEMBERS, set()),
        (NamespaceToolParam, tools.NAMESPACE_MEMBERS, set()),
        (FunctionToolParam, tools.FUNCTION_MEMBERS, {"output_schema"}),
    ],
)
def test_every_member_of_the_vendors_items_is_known(
    vendors: Any, known: frozenset[str], goes_on: set[str]
) -> None:
    assert set(vendors.__annotations__) - known == goes_on


def test_a_phase_is_refused_and_all_else_of_a_message_known() -> None:
    assert set(ResponseOutputMessageParam.__annotations__) - conversation.MESSAGE_MEMBERS == {"phase"}


def test_a_limit_of_thousands_of_digits_is_the_engines_to_judge() -> None:
    digits = "9" * 5000
    body = f'{{"model":"m","max_output_tokens":{digits},"input":"x"}}'.encode()
    assert f'"max_tokens":{digits}'.encode() in request.read_responses(body).source
    for none in ("0", "00", "-1", "1.5"):
        with pytest.raises(InvalidRequest):
            request.read_responses(body.replace(digits.encode(), none.encode()))
