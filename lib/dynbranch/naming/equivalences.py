"""Spellings that render alike for some models, and the requests by which an engine shows that for its own.

An equivalence is applied only where a start-up probe rendered both requests of each of its pairs to equal
prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

from dynbranch.naming.document import Json
from dynbranch.naming.fields import CHAT, MESSAGE, PART, TOOL_CALL, FieldClass, ObjectTable

SINGLE_TEXT_BLOCK: Final = "single_text_block_is_string"
"""The content ``[{"type": "text", "text": X}]`` renders like ``X``, in a conversation without calls. Not for
an empty X, and not for a last message of the assistant's: engines take that one for the beginning of the
answer, and treat an empty string there in their own way."""

BLOCK_BESIDE_CALLS: Final = "single_text_block_is_string_beside_calls"
"""The same in a conversation with calls and their results, those included."""

CALL_IDS: Final = "call_ids_are_not_printed"
"""Whatever the ids of calls are, as long as each result names its call."""

ABSENT_CONTENT: Final = "absent_content_is_null"
EMPTY_CONTENT: Final = "empty_content_is_null"
"""Of a message that holds calls."""

_BESIDE_CALLS: Final = frozenset({BLOCK_BESIDE_CALLS, CALL_IDS, ABSENT_CONTENT, EMPTY_CONTENT})

_TEMPLATE_FIELDS: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "functions",
        "reasoning",
        "reasoning_effort",
        "tool_choice",
    }
)
"""Beside messages and tools, what chat templates are given. No probe covers it, but for the tool choice
``auto`` beside calls."""

_ROLES: Final = frozenset({"system", "user", "assistant"})
_PLAIN: Final = frozenset({"role", "content"})
_SPOKEN: Final = frozenset({"role", "content", "reasoning_content", "tool_calls"})
_RESULT: Final = frozenset({"role", "content", "tool_call_id"})
_CALL: Final = frozenset({"id", "type", "function"})


def call_id(place: int) -> str:
    """The one id of a call by its place in the conversation. Nine letters and digits, as one family of
    templates demands."""
    return f"call{place:05d}"


# -- the probe -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbePair:
    """Two message lists that must render to equal prompts for ``equivalence`` to hold."""

    equivalence: str
    tools: bool
    """Whether the request offers a tool: templates often take another turn then."""
    first: tuple[dict[str, Json], ...]
    second: tuple[dict[str, Json], ...]
    chooses: bool = False
    """Whether it says ``"tool_choice": "auto"`` as well."""

    def shares_first(self, other: ProbePair) -> bool:
        """Whether the first request of both is the same."""
        return (self.first, self.tools, self.chooses) == (other.first, other.tools, other.chooses)


def probe_pairs() -> tuple[ProbePair, ...]:
    return (*_plain_pairs(), *_pairs_beside_calls())


_THOUGHT: Final = "<think>\nso\n</think>\n\n Done.\n"
_RESPONSE: Final = "<tool_response>\none /no_think\n</tool_response>"
"""Texts that templates look into, some of them in strings only."""


def _plain_pairs() -> Iterator[ProbePair]:
    """Every role that the equivalence is applied to, in the middle and at the end; texts with blanks at their
    edges, and such as templates look into."""
    closing: dict[str, Json] = {"role": "user", "content": "And then?"}
    for role in sorted(_ROLES):
        for text in ("One word", " a text\nwith edges \n", _THOUGHT, _RESPONSE):
            plain: dict[str, Json] = {"role": role, "content": text}
            opening: dict[str, Json] = {"role": "user", "content": "Begin."}
            block: dict[str, Json] = {**plain, "content": [{"type": "text", "text": text}]}
            before = () if role == "system" else (opening,)
            ends: tuple[tuple[dict[str, Json], ...], ...] = (
                ((closing,), ()) if role == "user" else ((closing,),)
            )
            for end in ends:
                for tools in (False, True):
                    yield ProbePair(SINGLE_TEXT_BLOCK, tools, (*before, plain, *end), (*before, block, *end))


def _pairs_beside_calls() -> Iterator[ProbePair]:
    """One conversation with parallel calls, words beside a call, and results at its end or before another
    question. All pairs of a context share their first request."""
    for tools, chooses, thinks, goes_on, marked in (
        (False, False, False, False, False),
        (True, False, False, False, False),
        (True, True, False, False, False),
        (False, False, True, False, False),
        (True, False, True, False, False),
        (True, False, False, True, False),
        (True, False, True, True, False),
        (True, False, False, True, True),
        (True, False, True, True, True),
    ):
        first = _conversation(thinks=thinks, goes_on=goes_on, marked=marked)
        for equivalence, second in (
            (CALL_IDS, _with_other_ids(first)),
            (ABSENT_CONTENT, tuple(_without_null(message) for message in first)),
            (EMPTY_CONTENT, tuple(_with_empty(message) for message in first)),
            (BLOCK_BESIDE_CALLS, tuple(_in_block(message) for message in first)),
        ):
            yield ProbePair(equivalence, tools, first, second, chooses)


def _conversation(*, thinks: bool, goes_on: bool, marked: bool) -> tuple[dict[str, Json], ...]:
    """Every text has blanks at its edges, or is ``marked`` with what templates look into."""
    thought: dict[str, Json] = {"reasoning_content": "I have to look."} if thinks else {}
    messages: list[dict[str, Json]] = [
        {"role": "system", "content": "/no_think" if marked else " Be brief.\n"},
        {"role": "user", "content": _RESPONSE if marked else " Look\nthere. \n"},
        {"role": "assistant", "content": None, **thought, "tool_calls": [_call(0), _call(1)]},
        {"role": "tool", "tool_call_id": call_id(0), "content": _RESPONSE if marked else " one\n"},
        {"role": "tool", "tool_call_id": call_id(1), "content": " two\n"},
        {
            "role": "assistant",
            "content": _THOUGHT if marked else " And there.\n",
            **thought,
            "tool_calls": [_call(2)],
        },
        {"role": "tool", "tool_call_id": call_id(2), "content": "three"},
    ]
    if goes_on:
        messages += [
            {"role": "assistant", "content": _THOUGHT if marked else "\n That is all. \n", **thought},
            {"role": "user", "content": _RESPONSE if marked else " Really? \n"},
        ]
    return tuple(messages)


def _call(place: int) -> dict[str, Json]:
    function: dict[str, Json] = {"name": "look", "arguments": f'{{"at": "{place}"}}'}
    return {"id": call_id(place), "type": "function", "function": function}


def _with_other_ids(messages: Sequence[dict[str, Json]]) -> tuple[dict[str, Json], ...]:
    others = {call_id(place): f"call_{place}a7Qz0Lk3Xw9Rt5" for place in range(3)}
    renamed = _with_ids(messages, others)
    assert renamed is not None
    return tuple(renamed)


def _without_null(message: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in message.items() if key != "content" or value is not None}


def _with_empty(message: dict[str, Json]) -> dict[str, Json]:
    return {**message, "content": ""} if message["content"] is None else message


def _in_block(message: dict[str, Json]) -> dict[str, Json]:
    text = message["content"]
    return message if text is None else {**message, "content": [{"type": "text", "text": text}]}


# -- one spelling --------------------------------------------------------------------------------------------


def in_one_spelling(
    body: dict[str, Json], messages: list[dict[str, Json]], equivalences: Set[str]
) -> list[Json]:
    """The messages, in one spelling where these equivalences say that several render alike.

    Only conversations of a probed shape are touched, with nothing else in the request that a template could
    look at.
    """
    if equivalences and not _has_unknown(body):
        if _is_plain(body, messages):
            if SINGLE_TEXT_BLOCK in equivalences:
                return [_plain(message, last=message is messages[-1]) for message in messages]
        elif not _BESIDE_CALLS.isdisjoint(equivalences) and _has_probed_calls(body, messages):
            return list(_beside_calls(messages, equivalences))
    return list(messages)


def _is_plain(body: dict[str, Json], messages: list[dict[str, Json]]) -> bool:
    return _TEMPLATE_FIELDS.isdisjoint(body) and all(
        message.get("role") in _ROLES and _determining(message, MESSAGE) == _PLAIN for message in messages
    )


def _has_unknown(body: dict[str, Json]) -> bool:
    return any(name not in CHAT.fields for name in body)


def _determining(value: dict[str, Json], table: ObjectTable) -> Set[str]:
    fields = table.fields
    return {key for key in value if key not in fields or fields[key].field_class is FieldClass.DETERMINES}


def _plain(message: dict[str, Json], *, last: bool) -> Json:
    return message if last and message["role"] == "assistant" else _unblocked(message)


def _unblocked(message: dict[str, Json]) -> dict[str, Json]:
    match message.get("content"):
        case [dict() as part] if _is_bare_text(part):
            return {**message, "content": part["text"]}
        case _:
            return message


def _is_bare_text(part: dict[str, Json]) -> bool:
    """A text, not empty, beside which nothing determines."""
    if part.get("type") != "text" or not part.get("text"):
        return False
    return _determining(part, PART) == {"type", "text"}


# -- beside calls --------------------------------------------------------------------------------------------


def _has_probed_calls(body: dict[str, Json], messages: list[dict[str, Json]]) -> bool:
    """Whether it holds calls, and all of it is of a shape that the probe has shown. A last message of the
    assistant's is the beginning of an answer, which no probe has shown."""
    given = _TEMPLATE_FIELDS & body.keys()
    if given and (given != {"tool_choice"} or body["tool_choice"] != "auto" or not body.get("tools")):
        return False
    if not any(message.get("tool_calls") for message in messages) or messages[-1].get("role") == "assistant":
        return False
    return all(map(_is_probed, messages))


def _is_probed(message: dict[str, Json]) -> bool:
    keys = _determining(message, MESSAGE)
    match message.get("role"):
        case "system" | "user":
            return keys == _PLAIN
        case "tool":
            return keys == _RESULT
        case "assistant":
            calls = message.get("tool_calls")
            thought = message.get("reasoning_content", "")
            if not keys <= _SPOKEN or not isinstance(thought, str):
                return False
            if "tool_calls" not in message:
                return "content" in keys
            return isinstance(calls, list) and bool(calls) and all(map(_is_plain_call, calls))
        case _:
            return False


def _is_plain_call(call: Json) -> bool:
    if not isinstance(call, dict) or _determining(call, TOOL_CALL) != _CALL or call["type"] != "function":
        return False
    match call["function"]:
        case {"name": str(), "arguments": str(), **beside}:
            return not beside
        case _:
            return False


def _beside_calls(messages: list[dict[str, Json]], equivalences: Set[str]) -> list[dict[str, Json]]:
    if CALL_IDS in equivalences:
        # Where ids do not tell each call from others, they may say more than which call is meant.
        messages = _with_ids(messages, _places(messages)) or messages
    if BLOCK_BESIDE_CALLS in equivalences:
        messages = [_unblocked(message) for message in messages]
    return [
        _with_null(message, equivalences) if message.get("tool_calls") else message for message in messages
    ]


def _with_null(message: dict[str, Json], equivalences: Set[str]) -> dict[str, Json]:
    is_absent, is_empty = "content" not in message, message.get("content") == ""
    if (is_absent and ABSENT_CONTENT in equivalences) or (is_empty and EMPTY_CONTENT in equivalences):
        return {**message, "content": None}
    return message


def _calls(message: dict[str, Json]) -> list[dict[str, Json]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _places(messages: Sequence[dict[str, Json]]) -> dict[str, str]:
    """The one id of each call; of calls that share an id only the last, so that another is left over."""
    ids = [call["id"] for message in messages for call in _calls(message)]
    return {sent: call_id(place) for place, sent in enumerate(ids) if isinstance(sent, str)}


def _with_ids(messages: Sequence[dict[str, Json]], ids: dict[str, str]) -> list[dict[str, Json]] | None:
    """The conversation with other ids. None: a call shares its id with another, or a result comes without
    its call before it."""
    renamed: list[dict[str, Json]] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            meant = message["tool_call_id"]
            if not isinstance(meant, str) or meant not in seen:
                return None
            message = {**message, "tool_call_id": ids[meant]}
        elif message.get("tool_calls"):
            calls: list[Json] = []
            for call in _calls(message):
                sent = call["id"]
                # A template may print whether there is an id at all.
                if not isinstance(sent, str) or not sent or sent in seen:
                    return None
                seen.add(sent)
                calls.append({**call, "id": ids[sent]})
            message = {**message, "tool_calls": calls}
        renamed.append(message)
    return renamed
