"""The field table of Chat Completions, as data (one class per field; an unknown field determines).

Three questions are answered for each field: which class it is in, how its value is compared, and whether it
keeps a result from being reused at level ``greedy``. The fields are those of the OpenAI request, and what
vLLM, SGLang and llama.cpp add to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class FieldClass(Enum):
    """DETERMINES is in the name. PRESENTATION shapes only how the result is sent. IDENTITY says who asks, or
    where and in what order the work is to run."""

    DETERMINES = "determines"
    PRESENTATION = "presentation"
    IDENTITY = "identity"


class Shape(Enum):
    """How a value is compared.

    FREE_FORM keeps key order and number spelling, because chat templates print it. NUMBER compares by exact
    value. OBJECT, OBJECTS (a list of them) and CONTENT (a text, or a list of typed parts) are protocol
    objects, whose keys have no order. Integers are FREE_FORM: they have one spelling as an integer, and
    engines do not all take ``1.0``.
    """

    FREE_FORM = "free_form"
    NUMBER = "number"
    OBJECT = "object"
    OBJECTS = "objects"
    CONTENT = "content"


class Accepts(Enum):
    """What every engine refuses is refused here, with a better message. Null is always let through, except
    for REQUIRED kinds."""

    ANYTHING = "anything"
    NUMBER = "a number"
    INTEGER = "an integer"
    COUNT = "an integer of at least 1"
    BOOLEAN = "a boolean"
    OBJECT = "an object"
    OBJECTS = "an array of objects"
    TEXT = "a string"
    TEXT_OR_OBJECT = "a string or an object"
    TEXT_OR_TEXTS = "a string or an array of strings"
    REQUIRED_TEXT = "a non-empty string"
    REQUIRED_OBJECTS = "a non-empty array of objects"
    CONTENT = "a string or an array of content parts"


# A tuple: every field of every request is looked up here, and comparing costs less than an Enum's hash.
REQUIRED: Final = (Accepts.REQUIRED_TEXT, Accepts.REQUIRED_OBJECTS)


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request with this field is not reused at level ``greedy``. ``reason`` is a stable word."""

    reason: str
    explanation: str


@dataclass(frozen=True, slots=True)
class Field:
    """``harmless`` holds the minimal JSON of values for which ``denial`` does not hold (numbers: by exact
    value). Null is always harmless: it is how clients say "not given"."""

    name: str
    field_class: FieldClass = FieldClass.DETERMINES
    shape: Shape = Shape.FREE_FORM
    accepts: Accepts = Accepts.ANYTHING
    table: ObjectTable | None = None
    denial: Denial | None = None
    harmless: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ObjectTable:
    """A declared protocol object. Fields that it does not know are compared as free-form values.

    ``prints_unknown``: an engine's template may print unknown fields in the order they came, so their order
    among themselves is kept.
    """

    name: str
    fields: dict[str, Field]
    prints_unknown: bool = False
    required: tuple[str, ...] = ()


def _table(name: str, *fields: Field, prints_unknown: bool = False) -> ObjectTable:
    by_name = {field.name: field for field in fields}
    assert len(by_name) == len(fields), f"a field stands twice in {name}"
    required = tuple(field.name for field in fields if field.accepts in REQUIRED)
    return ObjectTable(name, by_name, prints_unknown, required)


def _determines(*names: str, accepts: Accepts = Accepts.ANYTHING) -> tuple[Field, ...]:
    return tuple(Field(name, accepts=accepts) for name in names)


def _numbers(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, shape=Shape.NUMBER, accepts=Accepts.NUMBER) for name in names)


def _identity(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, FieldClass.IDENTITY) for name in names)


def _presentation(*names: str, accepts: Accepts = Accepts.ANYTHING) -> tuple[Field, ...]:
    return tuple(Field(name, FieldClass.PRESENTATION, accepts=accepts) for name in names)


def _denying(reason: str, explanation: str, **harmless_by_name: tuple[str, ...]) -> tuple[Field, ...]:
    denial = Denial(reason, explanation)
    return tuple(
        Field(name, denial=denial, harmless=frozenset(harmless))
        for name, harmless in harmless_by_name.items()
    )


def _object(
    name: str, table: ObjectTable, accepts: Accepts = Accepts.ANYTHING, denial: Denial | None = None
) -> Field:
    return Field(name, shape=Shape.OBJECT, accepts=accepts, table=table, denial=denial)


def _objects(name: str, table: ObjectTable, accepts: Accepts = Accepts.OBJECTS) -> Field:
    return Field(name, shape=Shape.OBJECTS, accepts=accepts, table=table)


# --- messages -----------------------------------------------------------------------------------------------

# Marks for a provider's prompt cache: no engine renders them in a message or a part. In a tool definition
# some templates print every key, so there they are unknown fields like any other.
_CACHE_MARKS = _identity("cache_control", "prompt_cache_breakpoint")

PART: Final = _table(
    "content part",
    *_determines("type", "text", "refusal"),
    _object("image_url", _table("image", *_determines("url", "detail"))),
    _object("video_url", _table("video", *_determines("url"))),
    _object("audio_url", _table("audio address", *_determines("url"))),
    _object("input_audio", _table("input audio", *_determines("data", "format"))),
    _object("file", _table("file", *_determines("file_data", "file_id", "filename"))),
    *_CACHE_MARKS,
)
OUTSIDE_PART: Final = Denial(
    "outside_input", "this part names content that is kept elsewhere and may change there"
)
"""A part that does not hold its own content. What a part of unknown type holds is not known."""

KNOWN_PARTS: Final = frozenset(
    {"text", "refusal", "image_url", "video_url", "audio_url", "input_audio", "file"}
)
"""A part of another type is free-form: what its engine reads of it is not known."""

# Arguments and inputs are texts that the model wrote: opaque, compared by code points.
_CALLED_FUNCTION = _table("called function", *_determines("name", "arguments"))
_CALLED_CUSTOM = _table("called custom tool", *_determines("name", "input"))
TOOL_CALL: Final = _table(
    "tool call",
    *_determines("id", "index", "type"),
    _object("function", _CALLED_FUNCTION),
    _object("custom", _CALLED_CUSTOM),
)

MESSAGE: Final = _table(
    "message",
    Field("role", accepts=Accepts.REQUIRED_TEXT),
    Field("content", shape=Shape.CONTENT, accepts=Accepts.CONTENT),
    *_determines("name", "tool_call_id", "refusal", "reasoning", "reasoning_content"),
    _objects("tool_calls", TOOL_CALL),
    _object("function_call", _CALLED_FUNCTION),
    _object("audio", _table("message audio", *_determines("id"))),
    *_CACHE_MARKS,
)

# --- tools and formats --------------------------------------------------------------------------------------

FUNCTION_DEFINITION: Final = _table(
    "function definition",
    *_determines("name", "description", "parameters", "strict"),
    prints_unknown=True,
)
TOOL: Final = _table(
    "tool definition",
    *_determines("type"),
    _object("function", FUNCTION_DEFINITION),
    _object(
        "custom", _table("custom tool", *_determines("name", "description", "format"), prints_unknown=True)
    ),
    prints_unknown=True,
)
CLIENT_SIDE_TOOLS: Final = frozenset({"function", "custom"})
"""Tools that the harness runs. Any other type runs at the server, and what it finds is not in the request."""
SERVER_SIDE_TOOL: Final = Denial(
    "server_side_tool", "a tool that runs at the server reads more than the request"
)

_CHOSEN = _table("chosen tool", *_determines("name"))
TOOL_CHOICE: Final = _table(
    "tool choice",
    *_determines("type", "name"),
    _object("function", _CHOSEN),
    _object("custom", _CHOSEN),
    _object("allowed_tools", _table("allowed tools", *_determines("mode", "tools"))),
)
RESPONSE_FORMAT: Final = _table(
    "response format",
    *_determines("type", "schema"),
    _object("json_schema", _table("JSON schema", *_determines("name", "description", "schema", "strict"))),
)

# --- what denies reuse --------------------------------------------------------------------------------------

_LOGPROBS = (
    "logprobs",
    "probabilities differ in their last digits from batch to batch: a recorded one is not canonical",
)
_STOCHASTIC = (
    "stochastic",
    "this setting can make decoding random although temperature or top_k says greedy",
)
_STATEFUL = ("stateful", "what this setting reuses depends on earlier requests, not on this one alone")
_OUTSIDE = ("outside_input", "the result depends on more than the request")
_EXTENSION = ("extension", "the engine hands this to code of its operator's, whose effect is not known here")

_OPENAI = (
    Field("model", accepts=Accepts.REQUIRED_TEXT),
    _objects("messages", MESSAGE, Accepts.REQUIRED_OBJECTS),
    _objects("tools", TOOL),
    _objects("functions", FUNCTION_DEFINITION),
    _object("tool_choice", TOOL_CHOICE, Accepts.TEXT_OR_OBJECT),
    _object("function_call", _CHOSEN, Accepts.TEXT_OR_OBJECT),
    _object("response_format", RESPONSE_FORMAT, Accepts.OBJECT),
    *_numbers("temperature", "top_p", "frequency_penalty", "presence_penalty"),
    Field("n", accepts=Accepts.COUNT),
    *_determines("max_tokens", "max_completion_tokens", "seed", accepts=Accepts.INTEGER),
    Field("stop", accepts=Accepts.TEXT_OR_TEXTS),
    # Free-form: engines apply the entries in the order they come.
    *_determines("logit_bias", "parallel_tool_calls", "reasoning_effort", "verbosity", "prediction"),
    *_denying(*_LOGPROBS, logprobs=("false",), top_logprobs=("0",)),
    *_denying(*_OUTSIDE, web_search_options=(), moderation=()),
    *_denying("not_text", "only text results are recorded", modalities=("[]", '["text"]'), audio=()),
    *_presentation("stream", accepts=Accepts.BOOLEAN),
    *_presentation("stream_options", accepts=Accepts.OBJECT),
    *_identity(
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    ),
)

# vLLM and SGLang. A ``cache_salt`` or ``extra_key`` asks that nothing be shared across it, so it determines.
_VLLM_SGLANG = (
    *_numbers("min_p", "repetition_penalty", "length_penalty"),
    *_determines("top_k", "min_tokens", accepts=Accepts.INTEGER),
    *_determines(
        "add_generation_prompt",
        "add_special_tokens",
        "allowed_token_ids",
        "bad_words",
        "cache_salt",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "ebnf",
        "echo",
        "extra_key",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "guided_whitespace_pattern",
        "ignore_eos",
        "include_reasoning",
        "include_stop_str_in_output",
        "lora_path",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "no_stop_trim",
        "reasoning",
        "regex",
        "repetition_detection",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "separate_reasoning",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_regex",
        "stop_token_ids",
        "stream_reasoning",
        "structural_tag",
        "structured_outputs",
        "thinking_token_budget",
        "truncate_prompt_tokens",
    ),
    *_denying(*_LOGPROBS, prompt_logprobs=(), return_hidden_states=("false",)),
    # A beam search ranks sums of probabilities: one rounding apart, and another beam wins. It is not greedy
    # decoding.
    *_denying(
        "beam_search", "a beam search is not greedy decoding", use_beam_search=("false",), best_of=("1",)
    ),
    # A template of the request's own may read the clock, and no probe has looked at it.
    *_denying(*_OUTSIDE, chat_template=()),
    *_denying(
        *_EXTENSION,
        logits_processors=("[]",),
        custom_logit_processor=(),
        custom_params=(),
        vllm_xargs=("{}",),
    ),
    *_denying(
        *_STATEFUL,
        kv_transfer_params=(),
        session_params=(),
        bootstrap_host=(),
        bootstrap_port=(),
        bootstrap_room=(),
    ),
    *_identity("data_parallel_rank", "priority", "request_id", "rid"),
)

_LLAMA_CPP = (
    *_numbers(
        "dry_base",
        "dry_multiplier",
        "repeat_penalty",
        "top_n_sigma",
        "typical_p",
    ),
    *_determines(
        "backend_sampling",
        "chat_format",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "generation_prompt",
        "grammar",
        "grammar_lazy",
        "grammar_triggers",
        "json_schema",
        "lora",
        "n_discard",
        "n_indent",
        "n_keep",
        "n_predict",
        "parse_tool_calls",
        "preserved_tokens",
        "reasoning_budget_tokens",
        "reasoning_format",
        "reasoning_in_content",
        "repeat_last_n",
        "response_fields",
        "return_progress",
        "return_tokens",
        "speculative.n_max",
        "speculative.n_min",
        "speculative.p_min",
        "speculative.types",
        "thinking_forced_open",
        "timings_per_token",
    ),
    *_denying(*_LOGPROBS, n_probs=("0",), post_sampling_probs=("false",)),
    # ``samplers`` may leave out the very step that makes temperature 0 or top_k 1 greedy; the others draw
    # before it.
    *_denying(
        *_STOCHASTIC,
        samplers=(),
        mirostat=("0",),
        mirostat_tau=(),
        mirostat_eta=(),
        dynatemp_range=("0",),
        dynatemp_exponent=(),
        xtc_probability=("0",),
        xtc_threshold=(),
        adaptive_target=(),
        adaptive_decay=(),
        min_keep=("0", "1"),
    ),
    *_denying("time_limited", "the result depends on how fast the engine runs", t_max_predict_ms=("0", "-1")),
    *_denying(*_STATEFUL, cache_prompt=("false",), id_slot=("-1",), n_cache_reuse=("0",)),
)

CHAT: Final = _table("chat completion request", *_OPENAI, *_VLLM_SGLANG, *_LLAMA_CPP)

ALIASED_BY_FINGERPRINT: Final = "model"
"""Named as the served model's id: the fingerprint names the model itself."""
