"""Chat templates that look at how a text is spelled: what they print differently has two names."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from dynbranch.naming.document import parse_body
from dynbranch.naming.equivalences import probe_pairs
from dynbranch.naming.normalise import normalise_chat

_PRINT = (
    "{%- macro p(c) -%}{%- if c is string -%}{{ c }}{%- elif c -%}"
    "{%- for part in c -%}{{ part.text }}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
)
_CALLS = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}"
_EACH, _END = "{%- for m in messages -%}<{{ m.role }}>", "</>{%- endfor -%}"

TRIMS_STRINGS_BESIDE_CALLS = (
    _PRINT
    + _EACH
    + "{% if m.tool_calls and m.content is string %}{{ m.content|trim }}"
    + "{% else %}{{ p(m.content) }}{% endif %}"
    + _CALLS
    + _END
)
PRINTS_WHETHER_THERE_IS_AN_ID = (
    _PRINT
    + _EACH
    + "{{ p(m.content) }}{% for c in m.tool_calls or [] %}[{% if c.id %}id {% endif %}{{ c.function.name }}]"
    + "{% endfor %}"
    + _END
)
PRINTS_THOUGHTS_AFTER_THE_LAST_QUESTION = (
    _PRINT
    + "{%- set at = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' and not "
    + "(m.content is string and m.content.startswith('<tool_response>')) -%}"
    + "{%- set at.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    + _EACH
    + "{% if m.reasoning_content and loop.index0 > at.last %}<think>{{ m.reasoning_content }}</think>"
    + "{% endif %}"
    + "{{ p(m.content) }}"
    + _CALLS
    + _END
)
HAS_A_SWITCH_IN_STRINGS = (
    _PRINT
    + _EACH
    + "{% if m.content is string and '/no_think' in m.content %}NO THOUGHTS{% endif %}{{ p(m.content) }}"
    + _CALLS
    + _END
)


def block(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def conversation(
    system: Any = "s", said: Any = None, id: str = "a", thought: str = "", asked: Any = None
) -> list[dict[str, Any]]:
    call = {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turn: dict[str, Any] = {"role": "assistant", "content": said, "tool_calls": [call]}
    if thought:
        turn["reasoning_content"] = thought
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": "u"},
        turn,
        {"role": "tool", "tool_call_id": id, "content": "r"},
    ]
    return [*messages, {"role": "user", "content": asked}] if asked else messages


RESPONSE = "<tool_response>x</tool_response>"


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    ("source", "one", "other"),
    [
        (TRIMS_STRINGS_BESIDE_CALLS, conversation(said="I look.\n"), conversation(said=block("I look.\n"))),
        (PRINTS_WHETHER_THERE_IS_AN_ID, conversation(id=""), conversation(id="a")),
        (
            PRINTS_THOUGHTS_AFTER_THE_LAST_QUESTION,
            conversation(thought="hm", asked=RESPONSE),
            conversation(thought="hm", asked=block(RESPONSE)),
        ),
        (HAS_A_SWITCH_IN_STRINGS, conversation(system="/no_think"), conversation(system=block("/no_think"))),
    ],
    ids=["trims strings", "looks at ids", "looks for responses", "has a switch"],
)
def test_what_a_template_prints_differently_has_two_names(
    source: str, one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    template = jinja2.Environment().from_string(source)
    held: dict[str, bool] = {}
    for pair in probe_pairs():
        same = template.render(messages=pair.first) == template.render(messages=pair.second)
        held[pair.equivalence] = held.get(pair.equivalence, True) and same
    shown = frozenset(equivalence for equivalence, holds in held.items() if holds)
    assert template.render(messages=one) != template.render(messages=other)
    names = [
        normalise_chat(
            parse_body(json.dumps({"model": "m", "temperature": 0, "messages": messages}).encode()), shown
        ).canonical
        for messages in (one, other)
    ]
    assert names[0] != names[1]
