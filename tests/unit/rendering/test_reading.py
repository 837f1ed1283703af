"""A template's file: what is wrong with it is said with its line, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import (
    Branching,
    Moment,
    MomentKind,
    Origin,
    Reads,
    ReadsKind,
    Speculable,
    StageKind,
    Where,
    Window,
)
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.problems import TemplateInvalid
from dynbranch.rendering.reading import parse_template
from dynbranch.rendering.watching import Adopted, Rejected, TemplateFolder, Withdrawn

GOOD = """\
workflow_type: demo
version: 3
inputs:
  user: {request: route, path: $.user}
stages:
  route:
    kind: chat
    repeats: true
    request: |
      {"user":{{ user | json_compact }}}
  act:
    kind: tool
    tool: run
    speculable: yes
    reads: source
    request: '{"do": {{ selection | json }}}'
  note:
    kind: chat
    speculable: once
    reads: ['notes/{{ output.act.json.id }}']
    request: '{"text":{{ output.act.text | json_compact }}}'
decision_points:
  handler:
    stage: route
    window: decode
    branch: exclusive
    resolved_by: {output: route, path: $.handler}
    opens: {arrival: route}
    candidates: {texts: {input: user}, predictors: [context, {name: history, window: 50}]}
    then: [act, note]
"""


def problems_of(text: str) -> str:
    with pytest.raises(TemplateInvalid) as caught:
        parse_template(text, "demo.yaml", JinjaRenderer)
    return caught.value.message


def test_a_file_becomes_values() -> None:
    template = parse_template(GOOD, "demo.yaml", JinjaRenderer)
    assert (template.workflow_type, template.version) == ("demo", 3)
    assert template.inputs[0].where == Where(Origin.REQUEST, "route", path="$.user")
    route, act, note = template.stages
    assert (route.kind, route.repeats, route.speculable) == (StageKind.CHAT, True, Speculable.NO)
    assert route.constants == ('{"user":', "}")
    assert (act.target, act.reads, act.speculable) == ("run", Reads(ReadsKind.SOURCE), Speculable.YES)
    assert note.speculable is Speculable.ONCE
    assert note.reads.records == ("notes/{{ output.act.json.id }}",)
    point = template.point("handler")
    assert (point.window, point.branching) == (Window.DECODE, Branching.EXCLUSIVE)
    assert point.opens == (Moment(MomentKind.ARRIVAL, "route"),)
    assert point.then == ("act", "note")
    assert [p.name for p in point.candidates.predictors] == ["context", "history"]
    assert point.candidates.predictors[1].parameters == (("window", 50),)


@pytest.mark.parametrize(
    ("change", "to", "line", "says"),
    [
        ("kind: chat", "kind: chatt", 7, "'chat' or 'tool'"),
        ("repeats: true", "repeat: true", 8, "did you mean 'repeats'?"),
        ("version: 3", "version: 0", 2, "greater than or equal to 1"),
        ("path: $.user}", "path: $user}", 4, "breaks at character 2"),
        ("request: route, path: $.user", "request: rout, path: $.user", 4, "did you mean 'route'?"),
        ("request: route, path: $.user", "path: $.user", 4, "exactly one of input:, request: and output:"),
        ("{{ user | json_compact", "{{ usr | json_compact", 10, "did you mean 'user'?"),
        ("{{ user | json_compact", "{{ user | tojson", 10, "| json (Python's json.dumps) or | json_compact"),
        ("{{ user | json_compact }}", "{{ user |", 10, ""),
        ("output.act.text", "output.at.text", 21, "did you mean 'act'?"),
        ("output.act.text", "output.route.text", 21, "runs before the output of 'route' is there"),
        ("speculable: yes", "speculable: no", 30, "the stage 'act' is not speculable"),
        ("then: [act, note]", "then: [act, nope]", 30, "there is no stage 'nope'"),
        ("{texts: {input: user}", "{texts: {input: users}", 29, "there is no input 'users'"),
        ("stage: route", "stage: rote", 24, "did you mean 'route'?"),
        ("window: decode", "window: decode\n    window: wait", 26, "stands twice"),
        ("  user: {", "  index: {", 4, "choose another name"),
        ("workflow_type: demo", "workflow_type: [", 3, "not YAML"),
        ("    tool: run", "    tool: run\n    tools: x", 14, "did you mean 'tool'?"),
        ("predictors: [context, {name: history, window: 50}]", "predictors: []", 29, "at least 1"),
    ],
)
def test_a_problem_names_its_line(change: str, to: str, line: int, says: str) -> None:
    assert change in GOOD
    message = problems_of(GOOD.replace(change, to, 1))
    assert any(one.startswith(f"demo.yaml:{line}: ") and says in one for one in message.split("\n")), message


def test_a_syntax_error_names_the_line_within_the_text() -> None:
    text = GOOD.replace(
        '{"user":{{ user | json_compact }}}', '{"user":\n        {{ user | json_compact }},\n      {% if %}}'
    )
    assert problems_of(text).startswith("demo.yaml:12: ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: b",
        "workflow_type: x",
        "a: &b [*b]",
        "1: 2",
        "a: \x07",
        "stages: {1: 2, x: [], y: {kind: 7, reads: 3}}",
        "[" * 5000,
    ],
)
def test_what_is_no_template_is_refused(text: str) -> None:
    assert problems_of(text)


def test_a_value_of_several_kinds_is_told_by_its_key() -> None:
    message = problems_of(GOOD.replace("reads: source", "reads: 7"))
    assert all(line.startswith("demo.yaml:15: stages.act.reads: ") for line in message.split("\n"))


def test_a_gateway_reads_without_looking_at_requests() -> None:
    assert parse_template(GOOD.replace("{{ user", "{{ nobody"), "demo.yaml").workflow_type == "demo"


def test_a_folder_is_read_again_when_a_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text(GOOD)
    folder = TemplateFolder(tmp_path, poll_s=2.0)
    (change,) = folder.poll(Instant(0.0))
    assert isinstance(change, Adopted)
    assert folder.in_force["demo"].template.version == 3
    assert folder.poll(Instant(2.0)) == ()

    file.write_text(GOOD.replace("version: 3", "version: 12"))
    assert folder.poll(Instant(3.0)) == (), "not before its time"
    assert isinstance(folder.poll(Instant(4.0))[0], Adopted)
    assert folder.in_force["demo"].template.version == 12

    file.write_text(GOOD.replace("kind: chat", "kind: chap"))
    (rejected,) = folder.poll(Instant(6.0))
    assert isinstance(rejected, Rejected)
    assert rejected.kept
    assert f"{file}:7: " in rejected.reason
    assert folder.in_force["demo"].template.version == 12, "the old version stays"
    assert folder.poll(Instant(8.0)) == (), "and is told once"

    file.unlink()
    assert folder.poll(Instant(10.0)) == (Withdrawn(file, "demo"),)
    assert not folder.in_force


def test_a_file_that_is_replaced_by_renaming_is_seen(tmp_path: Path) -> None:
    file, other = tmp_path / "demo.yaml", tmp_path / "new"
    file.write_text(GOOD)
    folder = TemplateFolder(tmp_path, poll_s=0.0)
    folder.poll(Instant(0.0))
    other.write_text(GOOD.replace("version: 3", "version: 4"))
    other.rename(file)
    folder.poll(Instant(1.0))
    assert folder.in_force["demo"].template.version == 4


def test_two_files_do_not_declare_one_type(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yml").write_text(GOOD)
    changes = TemplateFolder(tmp_path).poll(Instant(0.0))
    assert [type(change) for change in changes] == [Adopted, Rejected]
    assert isinstance(changes[1], Rejected)
    assert "a.yaml already declares" in changes[1].reason


def test_the_example_of_the_documentation_is_a_template() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "templates.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0]
    assert parse_template(example, "templates.md", JinjaRenderer).workflow_type == "sub-agents"
