"""What passes by tells the inputs, the selections and the candidates of a workflow."""

from __future__ import annotations

import pytest
from dynbranch.domain.template import Ambiguous, Output, StageKind, ToolCall, WorkflowContext
from dynbranch.naming.document import Number, parse_text
from dynbranch.rendering.following import Follower, Offered, Resolution
from dynbranch.rendering.reading import parse_template
from dynbranch.rendering.telling import (
    message_output,
    read_output,
    read_values,
    told_output,
    told_values,
)
from hypothesis import given
from hypothesis import strategies as st

TEXT = r"""
workflow_type: t
version: 1
inputs:
  names: {request: route, path: '$.tools[*].name', every: true}
  lines: {request: route, path: $.text, regex: '^\* (?P<value>.*)$', every: true}
  limit: {request: route, path: $.limit}
stages:
  route: {kind: chat, request: '{}'}
  act: {kind: chat, speculable: yes, request: '{}'}
decision_points:
  tool:
    stage: route
    window: decode
    branch: exclusive
    resolved_by: {output: route, call_name: true, several: true}
    opens: [{arrival: route}, {output: act}]
    candidates:
      menu: {input: names}
      texts: [{request: route, path: $.text}, {output: act, regex: '[A-Z]\w+'}]
      unused: true
      predictors: history
    then: act
  pick:
    stage: route
    window: wait
    branch: independent
    resolved_by: {request: act, path: $.pick}
    opens: {output: route}
    candidates: {menu: {output: route, path: '$.menu[*]'}, predictors: offer}
    then: act
"""
BODY = parse_text('{"tools":[{"name":"a"},{"name":"b"}],"text":"go\\n* one\\n* two","limit":1.50}')


@pytest.fixture
def follower() -> Follower:
    return Follower(parse_template(TEXT, "t.yaml"))


def test_an_arrival_brings_inputs_and_opens_its_points(follower: Follower) -> None:
    followed = follower.arrived(WorkflowContext(), "route", BODY)
    assert followed.context.inputs == {"names": ["a", "b"], "lines": ["one", "two"], "limit": Number("1.50")}
    assert (followed.opens, followed.resolutions) == (("tool",), ())


def test_what_a_request_lacks_is_no_input(follower: Follower) -> None:
    assert follower.inputs_in("route", parse_text("{}")) == {"names": [], "lines": []}
    assert follower.inputs_in("act", BODY) == {}


def test_an_output_selects_and_a_selection_is_no_candidate_again(follower: Follower) -> None:
    context = follower.arrived(WorkflowContext(), "route", BODY).context
    point = follower.template.point("tool")
    assert follower.offered(point, context, BODY) == Offered(("a", "b"), ("go\n* one\n* two",))
    followed = follower.gave(context, "route", Output(calls=(ToolCall("a", "{}"),), finish="tool_calls"))
    assert followed.resolutions == (Resolution("tool", ("a",)),)
    assert followed.opens == ("pick",)
    assert follower.offered(point, followed.context, BODY).menu == ("b",)
    after = follower.gave(followed.context, "act", Output("See Rome and Oslo"))
    assert after.opens == ("tool",)
    assert follower.offered(point, after.context).texts == ("See", "Rome", "Oslo")


def test_a_menu_in_an_output_and_a_pick_in_a_request(follower: Follower) -> None:
    context = follower.gave(WorkflowContext(), "route", Output('{"menu":["Yes","No"]}')).context
    assert follower.offered(follower.template.point("pick"), context).menu == ("Yes", "No")
    followed = follower.arrived(context, "act", parse_text('{"pick":"No"}'))
    assert followed.resolutions == (Resolution("pick", ("No",)),)
    assert followed.context.selections == {"pick": (("No",),)}


def test_an_unclear_decision_is_told_and_changes_nothing(follower: Follower) -> None:
    followed = follower.arrived(WorkflowContext(), "act", parse_text('{"pick":["No"]}'))
    (resolution,) = followed.resolutions
    assert isinstance(resolution.selected, Ambiguous)
    assert followed.context.selections == {}


def test_a_context_is_never_changed_in_place(follower: Follower) -> None:
    empty = WorkflowContext()
    follower.arrived(empty, "route", BODY)
    follower.gave(empty, "route", Output("x"))
    assert empty == WorkflowContext()


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
outputs = st.builds(
    Output,
    text=texts,
    calls=st.lists(st.builds(ToolCall, name=texts, arguments=texts), max_size=2).map(tuple),
    reasoning=texts,
    finish=st.sampled_from(["stop", "length", ""]),
)


@given(output=outputs)
def test_outputs_are_told_whole(output: Output) -> None:
    assert read_output(told_output(output, StageKind.CHAT), StageKind.CHAT) == output
    result = Output(output.text or "x", finish="stop")
    assert read_output(told_output(result, StageKind.TOOL), StageKind.TOOL) == result


def test_what_was_not_told_is_no_output() -> None:
    assert read_output(b"", StageKind.TOOL) is None
    assert read_output(b"", StageKind.CHAT) is None
    assert read_output(b"[]", StageKind.CHAT) is None
    assert message_output({"tool_calls": ["x"], "content": None}).calls == (ToolCall("", ""),)


def test_values_keep_key_order_and_the_spelling_of_numbers() -> None:
    values = {"a": parse_text('{"z":1.0,"b":[1e3]}'), "c": "é"}
    told = told_values(values)
    assert told == (("a", '{"z":1.0,"b":[1e3]}'), ("c", '"é"'))
    assert read_values(told) == values
