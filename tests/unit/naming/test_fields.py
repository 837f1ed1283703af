"""The field table covers what clients and engines know, each field once."""

from __future__ import annotations

import typing

import pytest
from dynbranch.naming.fields import CHAT, FUNCTION_DEFINITION, MESSAGE, TOOL_CALL, Accepts, FieldClass, Shape
from openai.types.chat import (
    chat_completion_assistant_message_param,
    chat_completion_message_function_tool_call_param,
    completion_create_params,
)
from openai.types.shared_params import function_definition

EXTRAS = {
    "vllm": """add_generation_prompt add_special_tokens allowed_token_ids bad_words best_of cache_salt
    chat_template     chat_template_kwargs continue_final_message documents echo guided_choice guided_grammar
    guided_json guided_regex     ignore_eos include_reasoning include_stop_str_in_output kv_transfer_params
    length_penalty logits_processors     min_p min_tokens mm_processor_kwargs priority prompt_logprobs
    repetition_penalty request_id return_token_ids     skip_special_tokens spaces_between_special_tokens
    stop_token_ids structured_outputs top_k     truncate_prompt_tokens use_beam_search vllm_xargs""",
    "sglang": """chat_template_kwargs custom_logit_processor ebnf extra_key ignore_eos lora_path min_p
    min_tokens     no_stop_trim regex repetition_penalty return_hidden_states rid separate_reasoning
    session_params     skip_special_tokens stop_regex stop_token_ids stream_reasoning top_k""",
    "llama.cpp": """cache_prompt dry_base dry_multiplier dynatemp_exponent dynatemp_range grammar id_slot
    json_schema     lora min_keep mirostat mirostat_eta mirostat_tau n_discard n_keep n_predict n_probs
    post_sampling_probs     reasoning_format repeat_last_n repeat_penalty response_fields return_progress
    return_tokens samplers     t_max_predict_ms timings_per_token top_n_sigma typical_p xtc_probability
    xtc_threshold""",
}


def declared(type_: type) -> set[str]:
    return set(typing.get_type_hints(type_))


@pytest.mark.promise("C1.name")
def test_every_field_of_the_openai_request_is_classified() -> None:
    known = declared(completion_create_params.CompletionCreateParamsNonStreaming)
    known |= declared(completion_create_params.CompletionCreateParamsStreaming)
    assert {"messages", "model", "stream"} <= known
    assert not known - set(CHAT.fields)


@pytest.mark.parametrize("engine", sorted(EXTRAS))
def test_what_engines_add_is_classified(engine: str) -> None:
    assert not set(EXTRAS[engine].split()) - set(CHAT.fields)


def test_messages_calls_and_functions_are_classified() -> None:
    assert not declared(chat_completion_assistant_message_param.ChatCompletionAssistantMessageParam) - set(
        MESSAGE.fields
    )
    calls = chat_completion_message_function_tool_call_param.ChatCompletionMessageFunctionToolCallParam
    assert not declared(calls) - set(TOOL_CALL.fields)
    assert not declared(function_definition.FunctionDefinition) - set(FUNCTION_DEFINITION.fields)


@pytest.mark.parametrize(
    ("name", "field_class"),
    [
        ("model", FieldClass.DETERMINES),
        ("messages", FieldClass.DETERMINES),
        ("logit_bias", FieldClass.DETERMINES),
        ("cache_salt", FieldClass.DETERMINES),
        ("stream", FieldClass.PRESENTATION),
        ("stream_options", FieldClass.PRESENTATION),
        ("user", FieldClass.IDENTITY),
        ("metadata", FieldClass.IDENTITY),
        ("store", FieldClass.IDENTITY),
        ("prompt_cache_key", FieldClass.IDENTITY),
        ("service_tier", FieldClass.IDENTITY),
        ("request_id", FieldClass.IDENTITY),
    ],
)
def test_classes(name: str, field_class: FieldClass) -> None:
    assert CHAT.fields[name].field_class is field_class


def test_numbers_by_value_are_numbers() -> None:
    for field in CHAT.fields.values():
        assert (field.shape is Shape.NUMBER) <= (field.accepts is Accepts.NUMBER)
        assert (field.shape in (Shape.OBJECT, Shape.OBJECTS)) == (field.table is not None)
