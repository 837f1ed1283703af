"""Requests are written byte for byte as harnesses write them, and a template can do nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from dynbranch.domain.template import (
    Output,
    Reads,
    ReadsKind,
    RenderFailed,
    Speculable,
    Stage,
    StageKind,
    Template,
    ToolCall,
    WorkflowContext,
)
from dynbranch.naming.document import parse_text
from dynbranch.rendering.constants import as_constant, constant_parts, joined_lines
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.json_text import SPELLINGS, spell_json
from dynbranch.rendering.problems import TemplateInvalid
from dynbranch.rendering.reading import parse_template
from dynbranch.rendering.recognition import Recogniser, holds_in_order
from dynbranch.rendering.slots import SlotRenderer
from hypothesis import given, settings
from hypothesis import strategies as st

HEAD = """
workflow_type: t
version: 1
inputs: {a: {request: s, path: $.a}, b: {request: s, path: $.b}}
stages:
"""
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


def template(request: str, **more: Any) -> Template:
    blank = parse_template(f"{HEAD}  s:\n    kind: chat\n    request: x\n", "t.yaml")
    stage = replace(blank.stages[0], request=request, constants=constant_parts(request), **more)
    return replace(blank, stages=(stage,))


def rendered(request: str, context: WorkflowContext | None = None, **inputs: Any) -> str:
    context = (context or WorkflowContext()).with_inputs(inputs)
    return JinjaRenderer(template(request)).render("s", context).decode()


@settings(max_examples=40)
@given(value=values)
def test_the_spellings_are_those_of_json_dumps(value: Any) -> None:
    text = json.dumps(value)
    parsed = parse_text(text)
    assert rendered("{{ a | json }}", a=parsed) == text
    assert rendered("{{ a | json_unicode }}", a=parsed) == json.dumps(value, ensure_ascii=False)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert rendered("{{ a | json_compact }}", a=parsed) == compact
    for name in SPELLINGS:
        assert parse_text(spell_json(parsed, SPELLINGS[name])) == parsed


@settings(max_examples=40)
@given(text=texts)
def test_a_text_within_a_text(text: str) -> None:
    inner = json.dumps({"id": text})
    request = r'{"arguments":"{\"id\": {{ a | json | in_json }}}","note":"say: {{ a | in_json }}"}'
    expected = json.dumps(
        {"arguments": inner, "note": f"say: {text}"}, ensure_ascii=False, separators=(",", ":")
    )
    assert rendered(request, a=text) == expected


def test_key_order_and_the_spelling_of_numbers_stay() -> None:
    value = parse_text('{"b": 1.0, "a": [1e5, -0.0, 10000000000000000000000], "</a>": "é"}')
    assert rendered("{{ a | json_unicode }}", a=value) == (
        '{"b": 1.0, "a": [1e5, -0.0, 10000000000000000000000], "</a>": "é"}'
    )


def test_lines_of_the_file_are_layout() -> None:
    loop = "\n  {%- for i in range(2) -%}\n  ,{{ i }}\n  {%- endfor -%}\n"
    request = '{"m":[\n    {"x":{\n      "y":{{ a }}}}' + loop + " ]}\n"
    assert rendered(request, a="1") == '{"m":[{"x":{"y":1}},0,1]}'
    assert joined_lines("a\n  b").count("\n") == 1


@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=30))
def test_any_constant_can_be_shown(text: str) -> None:
    # Blanks at the ends of a whole request are layout; what stands between braces never is.
    request = f"[{as_constant(text)}]"
    assert rendered(request) == f"[{text}]"


def test_outputs_selections_and_rounds() -> None:
    context = (
        WorkflowContext()
        .with_output("s", Output('{"items": [1], "x": {"get": 2}}', (ToolCall("f", '{"q": "é"}'),)))
        .with_output("s", Output("second"))
    )
    assert rendered("{{ outputs.s[0].json['items'][0] }}{{ outputs.s[0].json.x.get }}", context) == "12"
    assert rendered("{{ outputs.s[0].json.items[0] }}", context) == "1"
    assert rendered("{{ output.s.text }}{{ index }}", context) == "second2"
    assert rendered("{{ outputs.s[0].calls[0].name }}{{ outputs.s[0].calls[0].json.q }}", context) == "fé"


@pytest.mark.parametrize(
    ("request_text", "says"),
    [
        ("{{ a.missing }}", "nothing is known of 'missing'"),
        ("{{ output.s.text }}", "nothing is known of 's'"),
        ("{{ selection }}", "'selection' is undefined"),
        ("{{ b }}", "'b' is undefined"),
        ("{{ b | json }}", "'b' is undefined"),
        ("{{ a }}", "needs a spelling"),
        ("{{ a.x | in_json }}", "expected a text"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ 'x' | parse }}", "read as JSON"),
        ("{{ range(1000000) | length }}", "Range too big"),
        ("{{ a.__class__ }}", "nothing is known of '__class__'"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_what_can_not_be_written_says_why(request_text: str, says: str) -> None:
    with pytest.raises(RenderFailed) as caught:
        rendered(request_text, a={"x": []})
    assert says in caught.value.message
    assert caught.value.facts == {"stage": "s"}


@pytest.mark.parametrize("filter", ["tojson", "random", "pprint", "urlize", "xmlattr"])
def test_filters_that_would_differ_from_a_harness_are_not_there(filter: str) -> None:
    with pytest.raises(TemplateInvalid):
        rendered("{{ a | " + filter + " }}", a="x")


def test_files_and_other_templates_are_out_of_reach() -> None:
    for text in ("{% include 'x' %}", "{% import 'x' as y %}"):
        with pytest.raises(RenderFailed):
            rendered(text, a="x")


@pytest.mark.parametrize(
    "request_text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% for x in [[1]] recursive %}{{ loop([x, x]) }}{% endfor %}",
        "{{ 10**(10**8) }}",
        "{{ a * (10**9) }}",
        "{{ 'x' * 99999999999 }}",
        "{{ 99999999999 * [1] }}",
        "{{ '%5000000000d' % 1 }}",
        "{{ '{:5000000000}'.format(1) }}",
        "{{ a.ljust(99999999999) }}",
        "{{ [1] | batch(9999999999, 0) | list | length }}",
        "{{ [1] | slice(9999999999) | list | length }}",
        "{{ range(99999) | join(a) | length }}",
        "{% set b = a | replace('', a) %}{{ b | replace('', b) | length }}",
        "{% set n = namespace(t=a) %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
        "{% set n = namespace(t=a) %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
        "{% set n = namespace(t=3) %}{% for i in range(60) %}{% set n.t = n.t * n.t %}{% endfor %}",
    ],
)
def test_no_text_takes_time_or_memory_without_end(request_text: str) -> None:
    with pytest.raises(RenderFailed):
        rendered(request_text, a="long " * 1000)


def test_loops_know_their_length_within_the_bounds() -> None:
    text = "{% for i in b %}{{ i }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}"
    assert rendered(text, b=["1", "2"]) == "1,2" and rendered(text, b=[]) == "none"
    assert rendered("{{ a ~ '-' ~ a }}", a="x") == "x-x"
    assert rendered("{{ b | join(', ') }}{{ b | map('upper') | join }}", b=["a", "b"]) == "a, bAB"


def test_a_candidate_is_a_selection_that_has_not_been_made() -> None:
    text = """
workflow_type: t
version: 1
stages:
  decide: {kind: chat, request: '{}'}
  act: {kind: tool, speculable: yes, request: '{"do": {{ selection | json }}}', reads: ['r/{{ selection }}']}
decision_points:
  choice:
    stage: decide
    window: decode
    branch: exclusive
    resolved_by: {output: decide, path: $.do}
    opens: {arrival: decide}
    candidates: {predictors: history}
    then: act
"""
    renderer = JinjaRenderer(parse_template(text, "t.yaml"))
    empty = WorkflowContext()
    assert renderer.render("act", empty, "x") == b'{"do": "x"}'
    assert renderer.reads("act", empty, "x") == ("r/x",)
    with pytest.raises(RenderFailed, match="'selection' is undefined"):
        renderer.render("act", empty)
    made = empty.with_selection("choice", ("y",))
    assert renderer.render("act", made) == b'{"do": "y"}'
    assert renderer.render("act", made, "x") == b'{"do": "x"}'
    several = empty.with_selection("choice", ("y", "z"))
    with pytest.raises(RenderFailed):
        renderer.render("act", several)
    assert renderer.render("act", several, "z") == b'{"do": "z"}'


def test_the_slot_of_every_part_is_known() -> None:
    request = '{"a":{{ a | json_compact }},{%- if a -%}"b":"{{ b | in_json }}"{%- endif -%}}'
    context = WorkflowContext().with_inputs({"a": "x", "b": "yz"})
    slots = SlotRenderer(template(request)).slots("s", context)
    body = rendered(request, a="x", b="yz")
    assert [(body[s.begin : s.end], s.expression) for s in slots] == [
        ('"x"', "a | json_compact"),
        ("yz", "b | in_json"),
    ]


def stage(name: str, request: str, kind: StageKind = StageKind.CHAT, target: str = "") -> Stage:
    return Stage(
        name, kind, request, target, Speculable.NO, Reads(ReadsKind.NONE), False, constant_parts(request)
    )


def test_a_stage_is_known_by_header_tool_or_constants() -> None:
    one = stage("one", '{"sys":"first","u":{{ a }}}')
    two = stage("two", '{"sys":"second","u":{{ a }}{% for x in b %},{{ x }}{% endfor %}}')
    get = stage("get", '{"id":{{ a }}}', StageKind.TOOL, "get")
    recogniser = Recogniser(Template("t", 1, (), (one, two, get), ()))
    assert recogniser.stage_of(StageKind.CHAT, "m", b'{"sys":"second","u":1,2}') is two
    assert recogniser.stage_of(StageKind.CHAT, "m", b'{"sys":"third","u":1}') is None
    assert recogniser.stage_of(StageKind.CHAT, "m", b"{}", "one") is one
    assert recogniser.stage_of(StageKind.TOOL, "get", b"whatever") is get
    assert recogniser.stage_of(StageKind.TOOL, "put", b"whatever", "get") is None
    assert recogniser.stage_of(StageKind.TOOL, "put", b"whatever") is None


def test_two_stages_that_can_not_be_told_apart_are_neither() -> None:
    stages = (stage("one", '{"u":{{ a }}}'), stage("two", '{"u":{{ b }}}'))
    assert Recogniser(Template("t", 1, (), stages, ())).stage_of(StageKind.CHAT, "m", b'{"u":1}') is None


@given(parts=st.lists(st.binary(max_size=4), min_size=2, max_size=5), fills=st.lists(st.binary(max_size=4)))
def test_what_was_written_is_recognised(parts: list[bytes], fills: list[bytes]) -> None:
    slots = [*fills, *[b""] * len(parts)]
    body = b"".join(part + slot for part, slot in zip(parts, slots, strict=False))
    body = body if not slots[len(parts) - 1] else body.removesuffix(slots[len(parts) - 1])
    assert holds_in_order(body, tuple(parts))


def test_constants_outside_of_blocks_only() -> None:
    text = '{% set x = 1 -%}\n  {"a":{{ a }},\n  {%- if b %}"c"{% endif -%}  "d"{# no #}e}'
    assert constant_parts(text) == ('{"a":', ",", '"d"e}')
