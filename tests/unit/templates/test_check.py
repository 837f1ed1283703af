"""A check says where a template and the traffic part, and whose slot it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.domain.template import Output, StageKind, Template, ToolCall
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.reading import parse_template
from dynbranch.templates.check import check
from dynbranch.templates.traffic import Exchange, TrafficInvalid, line_of, read_traffic

TEXT = """
workflow_type: t
version: 1
inputs: {q: {request: plan, path: $.q}}
stages:
  plan: {kind: chat, request: '{"q":{{ q | json_compact }}}'}
  call:
    kind: tool
    tool: f
    repeats: true
    speculable: yes
    reads: source
    request: '{"x": {{ selection | json }}}'
  sum:
    kind: chat
    reads: ['r/{{ q }}']
    request: |
      {"q":{{ q | json_compact }},
      "all":{{ outputs.call | map(attribute="text") | join(" ") | json_compact }}}
decision_points:
  calls:
    stage: plan
    window: decode
    branch: independent
    resolved_by: {output: plan, call: f, path: $.x, several: true}
    opens: {arrival: plan}
    candidates: {texts: {input: q}, predictors: history}
    then: call
"""


def template(text: str = TEXT) -> Template:
    return parse_template(text, "t.yaml", JinjaRenderer)


def workflow(id: str = "w") -> list[Exchange]:
    """A plan that calls a tool twice in parallel; the calls overlap."""
    calls = tuple(ToolCall("f", f'{{"x":"{x}"}}') for x in ("one", "two"))
    plan = Exchange(
        "t", id, StageKind.CHAT, "m", b'{"q":"why"}', Output("", calls, finish="tool_calls"), done_ms=5
    )
    one = Exchange("t", id, StageKind.TOOL, "f", b'{"x": "one"}', Output("1"), at_ms=6, done_ms=9)
    two = Exchange("t", id, StageKind.TOOL, "f", b'{"x": "two"}', Output("2"), at_ms=7, done_ms=8)
    total = Exchange(
        "t", id, StageKind.CHAT, "m", b'{"q":"why","all":"2 1"}', Output("3"), at_ms=10, reads=("r/why",)
    )
    return [plan, one, two, total]


def test_parallel_calls_are_each_a_selection() -> None:
    report = check(template(), workflow())
    assert report.holds, report
    assert (report.stages["call"].seen, report.stages["call"].fills_equal) == (2, 2)
    assert report.points["calls"].read == 1


def test_chains_that_run_at_the_same_time_keep_to_their_own_outputs() -> None:
    text = TEXT.replace("then: call", "then: [call, get]").replace(
        "  sum:",
        """  get:
    kind: tool
    speculable: yes
    reads: source
    request: '{"of": {{ output.call.text | json }}}'
  sum:""",
    )
    plan, one, two, total = workflow()
    gets = [
        Exchange("t", "w", StageKind.TOOL, "get", body, Output("x"), at_ms=9.5)
        for body in (b'{"of": "1"}', b'{"of": "2"}')
    ]
    report = check(template(text), [plan, one, two, *gets, total])
    assert report.holds, report
    assert report.stages["get"].fills_equal == 2


def test_the_first_difference_is_told_with_its_slot() -> None:
    plan, one, two, total = workflow()
    exchanges = [plan, one, two, replace(total, body=b'{"q":"why","all":"2 x"}')]
    report = check(template(), exchanges)
    assert not report.holds
    (difference,) = report.stages["sum"].differences
    assert (difference.offset, difference.workflow_id, difference.as_fill) == (20, "w", False)
    assert difference.slot.startswith("outputs.call")
    assert difference.sent.endswith('"2 x"}')
    assert difference.rendered.endswith('"2 1"}')


def test_a_difference_in_constant_text_has_no_slot() -> None:
    named = [replace(e, stage=n) for e, n in zip(workflow(), ("plan", "call", "call", "sum"), strict=True)]
    report = check(template(TEXT.replace('"all":', '"any":')), named)
    (difference,) = report.stages["sum"].differences
    assert (difference.slot, difference.sent[difference.offset :][:2]) == ("", "ll")


def test_other_reads_than_declared_are_a_difference() -> None:
    report = check(template(TEXT.replace("r/{{ q }}", "r/other")), workflow())
    (difference,) = report.stages["sum"].differences
    assert difference.problem == "declared ['r/why'], not ['r/other']"


def test_what_can_not_be_rendered_says_so() -> None:
    report = check(template(), workflow()[1:])
    assert not report.holds
    assert "'selection' is undefined" in report.stages["call"].differences[0].problem


def test_a_request_of_no_stage_is_a_difference() -> None:
    stray = Exchange("t", "w", StageKind.TOOL, "g", b"{}", Output("x"))
    broken = Exchange("t", "w", StageKind.TOOL, "f", b"{", Output("x"))
    report = check(template(), [*workflow(), stray, broken])
    assert not report.holds
    assert report.unrecognised[0] == "w: tool g"
    assert report.unrecognised[1].startswith("w: call: ")


def test_traffic_of_another_type_does_not_count() -> None:
    other = replace(workflow()[0], workflow_type="u")
    assert not check(template(), [other]).holds
    assert check(template(), [*workflow(), other]).requests == 4


def test_an_output_that_decides_nothing_or_unclearly_is_counted() -> None:
    text = TEXT.replace("{output: plan, call: f, path: $.x, several: true}", "{output: plan, path: $.x}")
    plan = workflow()[0]
    exchanges = [
        replace(plan, workflow_id=str(n), output=Output(said, finish="stop"))
        for n, said in enumerate(('{"x":"a"}', "{}", "no json", '{"x":{}}'))
    ]
    count = check(template(text), exchanges).points["calls"]
    assert (count.asked, count.read, count.nothing) == (4, 1, 1)
    assert sum(count.ambiguous.values()) == 2
    assert count.visible_after == [pytest.approx(8 / 9)]


def test_every_kind_of_line_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    exchanges = [*workflow(), replace(workflow()[0], output=None)]
    file.write_text("".join(map(line_of, exchanges)))
    read = read_traffic(file)
    assert [e.output for e in read] == [
        replace(e.output, finish=e.output.finish or "stop") if e.output else None for e in exchanges
    ]
    assert [replace(e, output=None) for e in read] == [replace(e, output=None) for e in exchanges]


def test_engine_chunks_are_an_answer_too(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"workflow_type":"t","workflow_id":"w","target":"m","body":"{}","items":["{\\"choices\\":[{\\"index\\":0,'
        '\\"delta\\":{\\"content\\":\\"hi\\"},\\"finish_reason\\":\\"stop\\"}]}"]}\n\n'
    )
    (exchange,) = read_traffic(file)
    assert exchange.output == Output("hi", finish="stop")


LINE = '{"workflow_type":"t","workflow_id":"w","target":"m","body":"{}"}'


def test_a_last_line_that_nobody_writes_is_none_that_is_being_written(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(f"{LINE}\n{LINE[:-9]}")
    assert len(read_traffic(file)) == 1
    file.write_text(f"{LINE}\n{'[' * 100_000}")
    with pytest.raises(TrafficInvalid, match=r"t\.jsonl:2: .*recursion limit exceeded"):
        read_traffic(file)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "Invalid JSON"),
        ('{"workflow_type":"t"}', "workflow_id: Field required"),
        ('{"workflow_type":"t","workflow_id":"w","target":"m","body":"{}","items":["x"]}', "items: "),
        ('{"workflow_type":"t","workflow_id":"w","target":"m","body":"{}","kind":"x"}', "kind: "),
        ('{"workflow_type":"t","workflow_id":"w","target":"m"}', "body: it is missing"),
        ('{"kind":"write","records":[]}', "at_ms: Field required"),
        ('{"kind":"write","records":[],"at_ms":1e999}', "at_ms: Input should be a finite number"),
        (f'{LINE[:-1]},"at_ms":NaN}}', "at_ms: Input should be a finite number"),
        (f'{LINE[:-1]},"done_ms":-Infinity}}', "done_ms: Input should be a finite number"),
        (f'{LINE[:-1]},"at_ms":-1e300}}', "at_ms: Input should be greater than or equal to 0"),
        (f'{LINE[:-1]},"at_ms":1e15}}', "at_ms: Input should be less than or equal to 1"),
        (f'{LINE[:-1]},"execution_ms":1e308}}', "execution_ms: Input should be less than or equal to 1"),
        (f'{LINE[:-1]},"prompt_tokens":1{"0" * 400}}}', "prompt_tokens: Input should be less than or equal"),
        ("[" * 100_000, "recursion limit exceeded"),
    ],
    ids=lambda text: text[:80],
)
def test_a_bad_line_is_named(line: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("\n" + line + "\n")
    with pytest.raises(TrafficInvalid) as caught:
        read_traffic(file)
    assert str(caught.value).startswith(f"{file}:2: ")
    assert says in str(caught.value)
