"""A Messages request as the Chat Completions request that its engine receives.

Both protocols thus share one name exactly where the engine receives the same: nothing is assumed about how
an engine would read Messages itself.
"""

from __future__ import annotations

from typing import Final

from dynbranch.gateway.protocols.anthropic.conversation import chat_messages, is_open
from dynbranch.gateway.protocols.parts import streaming
from dynbranch.gateway.protocols.refusal import (
    beyond,
    is_positive,
    missing,
    only,
    text_at,
    unserved,
    wrong_type,
    wrong_value,
)
from dynbranch.naming.document import Document, Json, emit, parse_body

IDENTITY: Final = frozenset(
    {
        "billing_policy",
        "cache_control",
        "diagnostics",
        "fallback_credit_token",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Who asks, who pays and how soon: nothing of it reaches a model."""

UNSERVED: Final = {
    "compaction": "conversations are not shortened here",
    "container": "tools do not run here",
    "fallbacks": "a request goes to the model that it names",
    "inference_geo": "where engines stand is their operator's to say",
    "mcp_servers": "tools do not run here",
    "thread": "conversations are not kept here",
}
"""Promises that nobody here could keep. Null, and an empty list, ask for nothing."""

TRANSLATED: Final = frozenset(
    {
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)

_SAID_OTHERWISE: Final = frozenset(
    {
        "audio",
        "echo",
        "function_call",
        "functions",
        "logprobs",
        "max_completion_tokens",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prompt_logprobs",
        "reasoning_effort",
        "response_format",
        "stop",
        "stream_options",
        "top_logprobs",
    }
)
"""Fields of Chat Completions that Messages has its own word for, or whose answer it can not hold."""

TOOL_MEMBERS: Final = frozenset(
    {
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "description",
        "eager_input_streaming",
        "input_schema",
        "name",
        "type",
    }
)
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_NO_BLANK: Final = ("temperature", "top_p", "top_k")


def read_messages(body: bytes) -> Document:
    """The request as Chat Completions. Raises InvalidRequest with the path of the Messages field in
    ``facts["param"]``."""
    value = _as_chat(_checked(body), needs_length=True)
    return Document(emit(value).encode(), value)


def read_for_counting(body: bytes) -> Document:
    """The same for a request that asks for the length of its prompt. Raises InvalidRequest."""
    value = _as_chat(_checked(body), needs_length=False)
    return Document(emit(value).encode(), value)


def hides_thinking(body: Json) -> bool:
    """Whether the translated request asks that thinking be not shown."""
    match body:
        case {"thinking": {"display": "omitted"}}:
            return True
        case _:
            return False


def _checked(body: bytes) -> dict[str, Json]:
    value = parse_body(body).value
    if not isinstance(value, dict):
        raise wrong_type("body", "an object", value)
    return value


def _as_chat(asked: dict[str, Json], *, needs_length: bool) -> dict[str, Json]:
    for field, why in UNSERVED.items():
        if asked.get(field) not in (None, []):
            raise unserved(field, why)
    for field in asked.keys() & _SAID_OTHERWISE:
        if asked[field] is not None:
            raise unserved(field, "it is a field of Chat Completions")
    messages = chat_messages(asked.get("system"), asked.get("messages"))
    chat: dict[str, Json] = {"model": text_at(asked, "model", ""), "messages": messages}
    _add_length(chat, asked, needs_length=needs_length)
    for field in _NO_BLANK:
        if asked.get(field) is not None:
            chat[field] = asked[field]
    _add_tools(chat, asked)
    _add_output(chat, asked)
    # Whatever is not known goes on under its own name.
    chat.update(beyond(asked, TRANSLATED | IDENTITY | UNSERVED.keys() | _SAID_OTHERWISE))
    _add_thinking(chat, asked.get("thinking"))
    if asked.get("metadata") is not None:
        chat["metadata"] = asked["metadata"]
    if is_open(messages):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    chat |= streaming(asked.get("stream"))
    return chat


def _add_length(chat: dict[str, Json], asked: dict[str, Json], *, needs_length: bool) -> None:
    length = asked.get("max_tokens")
    if length is None:
        if needs_length:
            raise missing("max_tokens")
    elif not is_positive(length):
        raise wrong_value("max_tokens", "expected an integer of at least 1")
    else:
        chat["max_tokens"] = length
    stops = asked.get("stop_sequences")
    if stops is None:
        return
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong_type("stop_sequences", "an array of strings", stops)
    if stops:
        chat["stop"] = stops


# -- tools -------------------------------------------------------------------------------------------------


def _add_tools(chat: dict[str, Json], asked: dict[str, Json]) -> None:
    tools = asked.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise wrong_type("tools", "an array of tools", tools)
    if tools:
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = asked.get("tool_choice")
    if choice is None:
        return
    if not isinstance(choice, dict):
        raise wrong_type("tool_choice", "an object", choice)
    only(choice, frozenset({"type", "name", "disable_parallel_tool_use"}), "tool_choice")
    match text_at(choice, "type", "tool_choice"):
        case "auto":
            chat["tool_choice"] = "auto"
        case "any":
            chat["tool_choice"] = "required"
        case "none":
            chat["tool_choice"] = "none"
        case "tool":
            name = text_at(choice, "name", "tool_choice")
            chat["tool_choice"] = {"type": "function", "function": {"name": name}}
        case kind:
            raise wrong_value("tool_choice.type", f"{kind[:80]!r} is none of auto, any, tool, none")
    if choice.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False


def _tool(tool: Json, path: str) -> Json:
    if not isinstance(tool, dict):
        raise wrong_type(path, "an object", tool)
    if tool.get("type") not in (None, "custom"):
        raise unserved(f"{path}.type", "only tools that the request defines itself can be offered")
    if tool.get("defer_loading") not in (None, False):
        raise unserved(f"{path}.defer_loading", "every tool is told to the model")
    if tool.get("allowed_callers") not in (None, ["direct"]):
        raise unserved(f"{path}.allowed_callers", "calls are made by the model alone")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise (
            missing(f"{path}.input_schema")
            if schema is None
            else wrong_type(f"{path}.input_schema", "an object", schema)
        )
    function: dict[str, Json] = {"name": text_at(tool, "name", path)}
    if tool.get("description") is not None:
        function["description"] = text_at(tool, "description", path)
    function["parameters"] = schema
    return {"type": "function", "function": {**function, **_beside(tool, path)}}


def _beside(tool: dict[str, Json], path: str) -> dict[str, Json]:
    members = beyond(tool, TOOL_MEMBERS)
    if "parameters" in members:
        raise unserved(f"{path}.parameters", "the schema of a tool is its input_schema")
    return members


# -- how the model is to think and to write ----------------------------------------------------------------


def _add_output(chat: dict[str, Json], asked: dict[str, Json]) -> None:
    config = asked.get("output_config")
    if config is not None and not isinstance(config, dict):
        raise wrong_type("output_config", "an object", config)
    config = config or {}
    effort = config.get("effort")
    if effort is not None:
        if not isinstance(effort, str) or effort not in _EFFORTS:
            raise wrong_value("output_config.effort", f"expected one of {', '.join(_EFFORTS)}")
        chat["reasoning_effort"] = _EFFORTS[effort]
    for path, given in (
        ("output_config.format", config.get("format")),
        ("output_format", asked.get("output_format")),
    ):
        if given is not None:
            chat["response_format"] = _format(given, path)
    rest = beyond(config, frozenset({"effort", "format"}))
    if rest:
        chat["output_config"] = rest


def _format(given: Json, path: str) -> Json:
    match given:
        case {"type": "json_schema", "schema": dict() as schema, **beside} if not beside:
            return {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": schema, "strict": True},
            }
        case _:
            raise wrong_value(path, "expected a type 'json_schema' and a schema, and nothing else")


def _add_thinking(chat: dict[str, Json], thinking: Json) -> None:
    """To templates by the switch that most of them know, and as it is to engines that take it so."""
    if thinking is None:
        return
    if not isinstance(thinking, dict):
        raise wrong_type("thinking", "an object", thinking)
    switched: bool | None = None
    match text_at(thinking, "type", "thinking"):
        case "adaptive":
            pass
        case "enabled":
            switched = True
        case "disabled":
            switched = False
        case kind:
            raise wrong_value("thinking.type", f"{kind[:80]!r} is none of adaptive, enabled, disabled")
    chat["thinking"] = thinking
    if switched is None:
        return
    given = chat.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise wrong_type("chat_template_kwargs", "an object", given)
    chat["chat_template_kwargs"] = {"enable_thinking": switched, **(given or {})}
