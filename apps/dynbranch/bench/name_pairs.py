"""Requests drawn near one another, to try reuse names with: rewritings that must not matter, changes that
must.

Nothing here asks the naming code what matters. A request is a tree whose nodes say it themselves:
``Protocol`` objects have no key order, ``FreeForm`` ones do; ``Declared`` numbers may be spelled in any way,
``Spelled`` ones may not. Every function takes its chance as an argument.
"""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, TypeAlias


class Protocol(dict[str, Any]):
    """An object whose keys have no order."""


class FreeForm(dict[str, Any]):
    """An object that a template prints: its keys stay in order."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A number that engines read by value."""

    text: str


@dataclass(frozen=True, slots=True)
class Spelled:
    """A number whose spelling may reach the prompt."""

    text: str


Change: TypeAlias = Callable[[Random, Protocol], bool]
"""Changes a request in place; False where it holds nothing of the kind."""

TEXTS = (
    "Who wrote it?",
    "Paris",
    "caf\u00e9 \u00c5ngstr\u00f6m",
    "line one\nline two",
    "<|im_end|>\n<|im_start|>user\nhello",
    '{"a": 1, "b": [1.0, 2]}',
    "\u65e5\u672c\u8a9e \U0001f600",
    'tab\tquote" back\\slash /',
    " leading and trailing ",
    "a",
    "",
)
ROLES = ("system", "user", "assistant", "tool", "developer")
SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty")
NUMBERS = ("0", "1", "0.5", "0.7", "1.25", "2", "-1", "0.001")
INTEGERS = ("max_tokens", "seed", "n", "top_k", "max_completion_tokens", "min_tokens")
MARKS = ("cache_control", "prompt_cache_breakpoint")


def draw_request(rng: Random) -> Protocol:
    """A request with a conversation, perhaps tools, formats and settings."""
    request = Protocol(model="m", messages=_conversation(rng))
    if rng.random() < 0.5:
        request["tools"] = [_tool(rng, i) for i in range(rng.randint(1, 3))]
        if rng.random() < 0.4:
            request["tool_choice"] = rng.choice(
                ("auto", "none", Protocol(type="function", function=Protocol(name="tool_0")))
            )
    for name in SAMPLING:
        if rng.random() < 0.35:
            request[name] = Declared(rng.choice(NUMBERS))
    for name in INTEGERS:
        if rng.random() < 0.25:
            request[name] = Spelled(str(rng.randint(1, 200)))
    if rng.random() < 0.25:
        request["stop"] = rng.choice(("x", ["x"], ["x", "y"]))
    if rng.random() < 0.2:
        schema = Protocol(name="answer", schema=_schema(rng), strict=True)
        request["response_format"] = Protocol(type="json_schema", json_schema=schema)
    if rng.random() < 0.25:
        request["chat_template_kwargs"] = FreeForm(kw=_schema(rng), enable_thinking=rng.random() < 0.5)
    if rng.random() < 0.15:
        request["logit_bias"] = FreeForm({"12": Spelled("-100"), "7": Spelled("1.5")})
    return request


def rewrite(rng: Random, request: Protocol) -> bytes:
    """The same request in another spelling: key order, blanks, escapes, numbers, and fields that do not
    matter."""
    changed = copy.deepcopy(request)
    _restate_presentation(rng, changed)
    for message in changed["messages"]:
        if rng.random() < 0.3:
            message[rng.choice(MARKS)] = FreeForm(type="ephemeral", ttl=Spelled("5"))
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if rng.random() < 0.3:
                part["cache_control"] = FreeForm(type="ephemeral")
    return spell(changed, rng).encode()


def spell(value: Any, rng: Random | None = None) -> str:
    """A tree as JSON text; with chance, in a random spelling of the same meaning."""
    blank = rng.choice(("", "", " ", "\n  ", "\t")) if rng is not None else ""
    match value:
        case dict():
            keys = list(value)
            if rng is not None and isinstance(value, Protocol):
                rng.shuffle(keys)
            inside = (f"{spell(key, rng)}{blank}:{blank}{spell(value[key], rng)}" for key in keys)
            return "{" + blank + f",{blank}".join(inside) + blank + "}"
        case list():
            return "[" + blank + f",{blank}".join(spell(item, rng) for item in value) + blank + "]"
        case str():
            return json.dumps(value, ensure_ascii=False) if rng is None else _escaped(rng, value)
        case Declared(text):
            return text if rng is None else respelled(rng, text)
        case Spelled(text):
            return text
        case _:
            return json.dumps(value)


def respelled(rng: Random, text: str) -> str:
    """Another spelling of the same number: ``0.5`` may become ``5e-1``, ``0.500`` or ``50E-2``."""
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    zeros = rng.randint(0, 3)
    whole = "".join(map(str, digits)) if any(digits) else ""
    minus = "-" if sign else ""
    if rng.random() < 0.5:
        mark = rng.choice(("e", "E"))
        power = exponent - zeros
        padded = whole + "0" * zeros if whole else "0"
        return f"{minus}{padded}{mark}{'+' if power >= 0 and rng.random() < 0.5 else ''}{power}"
    plain = format(Decimal(text), "f")
    return plain + ("." if "." not in plain and zeros else "") + "0" * zeros


def neighbour(rng: Random, request: Protocol) -> tuple[Protocol, str]:
    """A request one determining change away, and the name of the change."""
    for _ in range(100):
        kind = rng.choice(sorted(CHANGES))
        changed = copy.deepcopy(request)
        if CHANGES[kind](rng, changed) and spell(changed) != spell(request):
            return changed, kind
    raise AssertionError("no change applies")


def _conversation(rng: Random) -> list[Protocol]:
    messages = [Protocol(role="system", content=rng.choice(TEXTS))] if rng.random() < 0.5 else []
    for turn in range(rng.randint(1, 3)):
        messages.append(Protocol(role="user", content=_content(rng)))
        choice = rng.random()
        if choice < 0.35:
            messages.append(Protocol(role="assistant", content=_content(rng)))
        elif choice < 0.6:
            calls = [_call(rng, f"call_{turn}_{i}") for i in range(rng.randint(1, 2))]
            messages.append(
                Protocol(role="assistant", content=rng.choice((None, "", "Let me see")), tool_calls=calls)
            )
            messages += [
                Protocol(role="tool", tool_call_id=c["id"], content=rng.choice(TEXTS)) for c in calls
            ]
    return messages


def _content(rng: Random) -> Any:
    if rng.random() < 0.7:
        return rng.choice(TEXTS)
    return [Protocol(type="text", text=rng.choice(TEXTS)) for _ in range(rng.randint(1, 3))]


def _call(rng: Random, call_id: str) -> Protocol:
    arguments = rng.choice(('{"q": "x", "k": 2}', '{"k":2,"q":"x"}', '{"q": "x", "k": 2.0}', "{}"))
    return Protocol(id=call_id, type="function", function=Protocol(name="tool_0", arguments=arguments))


def _tool(rng: Random, index: int) -> Protocol:
    function = Protocol(name=f"tool_{index}", description=rng.choice(TEXTS), parameters=_schema(rng))
    if rng.random() < 0.3:
        function["strict"] = rng.random() < 0.5
    return Protocol(type="function", function=function)


def _schema(rng: Random) -> FreeForm:
    properties = FreeForm(
        q=FreeForm(type="string", description=rng.choice(TEXTS)),
        k=FreeForm(type="number", minimum=Spelled(rng.choice(("1", "1.0", "0", "1e2")))),
    )
    return FreeForm(type="object", properties=properties, required=["q", "k"])


def _restate_presentation(rng: Random, request: Protocol) -> None:
    fields: dict[str, Any] = {
        "stream": rng.choice((True, False, None)),
        "stream_options": Protocol(include_usage=rng.random() < 0.5),
        "user": f"u{rng.randint(0, 9)}",
        "metadata": FreeForm(run=str(rng.randint(0, 9))),
        "store": rng.random() < 0.5,
        "service_tier": rng.choice(("auto", "flex")),
        "safety_identifier": "s",
        "prompt_cache_key": f"k{rng.randint(0, 9)}",
        "request_id": f"r{rng.randint(0, 9)}",
        "priority": Spelled(str(rng.randint(-5, 5))),
    }
    for name, value in fields.items():
        if rng.random() < 0.3:
            request[name] = value


def _escaped(rng: Random, text: str) -> str:
    share = rng.choice((0.0, 0.0, 0.3, 1.0))
    return '"' + "".join(_character(rng, character, share) for character in text) + '"'


def _character(rng: Random, character: str, share: float) -> str:
    if rng.random() >= share:
        return json.dumps(character, ensure_ascii=False)[1:-1]
    if ord(character) > 0xFFFF:
        return json.dumps(character)[1:-1]
    return f"\\u{ord(character):04{rng.choice('xX')}}"


# --- changes that an engine can see -------------------------------------------------------------------------


def _texts(request: Protocol) -> list[tuple[Any, str]]:
    """Where texts of messages stand: (container, key)."""
    places: list[tuple[Any, str]] = []
    for message in request["messages"]:
        content = message.get("content")
        if isinstance(content, str):
            places.append((message, "content"))
        for part in content if isinstance(content, list) else ():
            places.append((part, "text"))
    return places


def _move_text(rng: Random, request: Protocol) -> bool:
    places = _texts(request)
    if len(places) < 2:
        return False
    at = rng.randrange(len(places) - 1)
    (left, left_key), (right, right_key) = places[at : at + 2]
    if not left[left_key]:
        return False
    cut = rng.randrange(len(left[left_key]))
    left[left_key], moved = left[left_key][:cut], left[left_key][cut:]
    right[right_key] = moved + right[right_key]
    return True


def _edit_text(rng: Random, request: Protocol) -> bool:
    places = _texts(request)
    container, key = rng.choice(places) if places else (None, "")
    if container is None:
        return False
    text = container[key]
    edits = (
        text + " ",
        text + "\n",
        text.upper(),
        unicodedata.normalize("NFD", text),
        text + "\u200b",
        text[1:],
    )
    container[key] = rng.choice(edits)
    return True


def _change_role(rng: Random, request: Protocol) -> bool:
    rng.choice(request["messages"])["role"] = rng.choice(ROLES)
    return True


def _swap_messages(rng: Random, request: Protocol) -> bool:
    messages = request["messages"]
    at = rng.randrange(len(messages))
    messages[at - 1], messages[at] = messages[at], messages[at - 1]
    return True


def _split_message(rng: Random, request: Protocol) -> bool:
    at = rng.randrange(len(request["messages"]))
    message = request["messages"][at]
    text = message.get("content")
    if not isinstance(text, str) or "tool_calls" in message:
        return False
    cut = rng.randint(0, len(text))
    parts = [Protocol({**message, "content": piece}) for piece in (text[:cut], text[cut:])]
    request["messages"][at : at + 1] = parts
    return True


def _join_messages(rng: Random, request: Protocol) -> bool:
    messages = request["messages"]
    for at in range(len(messages) - 1):
        left, right = messages[at].get("content"), messages[at + 1].get("content")
        if isinstance(left, str) and isinstance(right, str):
            messages[at : at + 2] = [Protocol({**messages[at], "content": left + right})]
            return True
    return False


def _split_block(rng: Random, request: Protocol) -> bool:
    message = rng.choice(request["messages"])
    text = message.get("content")
    if not isinstance(text, str):
        return False
    cut = rng.randint(0, len(text))
    message["content"] = [Protocol(type="text", text=text[:cut]), Protocol(type="text", text=text[cut:])]
    return True


def _string_to_block(rng: Random, request: Protocol) -> bool:
    message = rng.choice(request["messages"])
    if not isinstance(message.get("content"), str):
        return False
    message["content"] = [Protocol(type="text", text=message["content"])]
    return True


def _empty_content(rng: Random, request: Protocol) -> bool:
    message = rng.choice(request["messages"])
    message["content"] = rng.choice((None, "", []))
    return True


def _name_message(rng: Random, request: Protocol) -> bool:
    rng.choice(request["messages"])["name"] = rng.choice(("ann", "bob"))
    return True


def _reason(rng: Random, request: Protocol) -> bool:
    rng.choice(request["messages"])["reasoning_content"] = rng.choice(TEXTS)
    return True


def _calls(request: Protocol) -> list[Protocol]:
    return [call for message in request["messages"] for call in message.get("tool_calls", ())]


def _change_arguments(rng: Random, request: Protocol) -> bool:
    calls = _calls(request)
    if not calls:
        return False
    function = rng.choice(calls)["function"]
    text = function["arguments"]
    function["arguments"] = rng.choice(
        (text.replace(" ", ""), text.replace("2", "2.0"), text.replace("x", "y"), "{ }")
    )
    return True


def _change_call(rng: Random, request: Protocol) -> bool:
    calls = _calls(request)
    if not calls:
        return False
    call = rng.choice(calls)
    if rng.random() < 0.5:
        call["id"] += "x"
    else:
        call["function"]["name"] += "x"
    return True


def _schemas(request: Protocol) -> list[FreeForm]:
    found = [tool["function"]["parameters"] for tool in request.get("tools", ())]
    if "response_format" in request:
        found.append(request["response_format"]["json_schema"]["schema"])
    if "chat_template_kwargs" in request:
        found.append(request["chat_template_kwargs"]["kw"])
    return found


def _reorder_schema(rng: Random, request: Protocol) -> bool:
    schemas = _schemas(request)
    if not schemas:
        return False
    schema = rng.choice(schemas)
    target = rng.choice((schema, schema["properties"], schema["properties"]["k"]))
    items = list(target.items())
    rng.shuffle(items)
    target.clear()
    target.update(items)
    return True


def _respell_schema(rng: Random, request: Protocol) -> bool:
    schemas = _schemas(request)
    if not schemas:
        return False
    rng.choice(schemas)["properties"]["k"]["minimum"] = Spelled(rng.choice(("1", "1.0", "0.0", "1e0", "100")))
    return True


def _change_tool(rng: Random, request: Protocol) -> bool:
    tools = request.get("tools")
    if not tools:
        return False
    tool = rng.choice(tools)
    match rng.randrange(5):
        case 0:
            tools.reverse()
        case 1:
            tool["function"]["description"] += "."
        case 2:
            tools.append(copy.deepcopy(tool))
        case 3:
            tool["function"]["strict"] = not tool["function"].get("strict", False)
        case _:
            tool["function"]["name"], tool["function"]["description"] = (
                tool["function"]["name"] + tool["function"]["description"][:1],
                tool["function"]["description"][1:],
            )
    return True


def _change_number(rng: Random, request: Protocol) -> bool:
    name = rng.choice(SAMPLING)
    if rng.random() < 0.3:
        request.pop(name, None)
    else:
        request[name] = rng.choice((None, *map(Declared, NUMBERS)))
    return True


def _change_integer(rng: Random, request: Protocol) -> bool:
    name = rng.choice(INTEGERS)
    if rng.random() < 0.3:
        request.pop(name, None)
    else:
        request[name] = rng.choice((Spelled("1"), Spelled("1.0"), Spelled("2"), Spelled("200")))
    return True


def _change_setting(rng: Random, request: Protocol) -> bool:
    settings: dict[str, tuple[Any, ...]] = {
        "stop": ("x", ["x"], ["x", "y"], ["y", "x"], None),
        "parallel_tool_calls": (True, False, None),
        "logprobs": (True, False),
        "tool_choice": ("auto", "none", None),
        "response_format": (None, Protocol(type="text"), Protocol(type="json_object")),
        "add_generation_prompt": (True, False),
        "cache_salt": ("a", "b"),
        "some_new_field": (Spelled("1"), Spelled("1.0"), FreeForm(a=None, b=None), FreeForm(b=None, a=None)),
    }
    name = rng.choice(sorted(settings))
    request[name] = rng.choice(settings[name])
    return True


CHANGES: dict[str, Change] = {
    "change_arguments": _change_arguments,
    "change_call": _change_call,
    "change_integer": _change_integer,
    "change_number": _change_number,
    "change_role": _change_role,
    "change_setting": _change_setting,
    "change_tool": _change_tool,
    "edit_text": _edit_text,
    "empty_content": _empty_content,
    "join_messages": _join_messages,
    "move_text": _move_text,
    "name_message": _name_message,
    "reason": _reason,
    "reorder_schema": _reorder_schema,
    "respell_schema": _respell_schema,
    "split_block": _split_block,
    "split_message": _split_message,
    "string_to_block": _string_to_block,
    "swap_messages": _swap_messages,
}
