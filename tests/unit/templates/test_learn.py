"""A proposed template writes what was recorded, and what was not: other workflows of the same type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from dynbranch.demo.flows import MENUS, REACT, ROUTING_CHAIN, SUB_AGENTS
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.records import passages
from dynbranch.demo.rehearsal import traffic
from dynbranch.domain.template import Branching, Origin, Output, Speculable, StageKind, Template, Window
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.reading import parse_template
from dynbranch.templates.check import check
from dynbranch.templates.learn import NotLearnable, learn, workflow_types
from dynbranch.templates.traffic import Exchange

TYPES = (ROUTING_CHAIN, REACT, SUB_AGENTS, MENUS)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Exchange]]:
    store = PassageStore(tmp_path_factory.mktemp("passages") / "passages.sqlite")
    store.load(passages())
    yield traffic(store, "a-model")
    store.close()


def learned(exchanges: list[Exchange], workflow_type: str) -> Template:
    return parse_template(learn(exchanges, workflow_type), "learned.yaml", JinjaRenderer)


@pytest.mark.parametrize("workflow_type", TYPES)
def test_the_demo_s_traffic_is_written_byte_for_byte(workflow_type: str, recorded: list[Exchange]) -> None:
    template = learned(recorded, workflow_type)
    report = check(template, recorded)
    assert report.holds, [count.differences for count in report.stages.values()]
    for point in template.decision_points:
        for stage in point.then:
            assert report.stages[stage].fills == report.stages[stage].seen > 0


@pytest.mark.parametrize("workflow_type", TYPES)
def test_so_are_workflows_that_were_not_shown(workflow_type: str, recorded: list[Exchange]) -> None:
    ids = list(dict.fromkeys(e.workflow_id for e in recorded if e.workflow_type == workflow_type))
    shown = [e for e in recorded if e.workflow_id in ids[: len(ids) // 2]]
    report = check(learned(shown, workflow_type), [e for e in recorded if e.workflow_id not in ids[:6]])
    assert report.holds, [count.differences for count in report.stages.values()]
    assert report.workflows == len(ids) - len(ids) // 2


@pytest.mark.parametrize("workflow_type", TYPES)
def test_stages_need_not_be_named(workflow_type: str, recorded: list[Exchange]) -> None:
    untagged = [replace(exchange, stage="") for exchange in recorded]
    report = check(learned(untagged, workflow_type), untagged)
    assert report.holds, [count.differences for count in report.stages.values()]


@pytest.mark.parametrize(
    ("workflow_type", "point", "stage", "window", "then"),
    [
        (ROUTING_CHAIN, "handler", "route", Window.DECODE, ("arguments", "execute")),
        (REACT, "entity", "think", Window.DECODE, ("search", "get", "note")),
        (SUB_AGENTS, "topic", "plan", Window.DECODE, ("search", "get", "report")),
        (MENUS, "pick", "offer", Window.WAIT, ("act", "tell")),
    ],
)
def test_decisions_are_found_where_the_shipped_templates_have_them(
    workflow_type: str,
    point: str,
    stage: str,
    window: Window,
    then: tuple[str, ...],
    recorded: list[Exchange],
) -> None:
    template = learned(recorded, workflow_type)
    (found,) = template.decision_points
    assert (found.name, found.stage, found.window, found.then) == (point, stage, window, then)
    assert all(template.stage(name).speculable is Speculable.YES for name in then)
    count = check(template, recorded).points[point]
    assert count.read == count.asked > 0
    if workflow_type != REACT:
        assert found.candidates.menu is not None
        assert count.in_menu == count.offered > 0
    if workflow_type in (ROUTING_CHAIN, MENUS):
        assert found.branching is Branching.INDEPENDENT


def test_declared_reads_are_learned(recorded: list[Exchange]) -> None:
    template = learned(recorded, REACT)
    assert template.stage("note").reads.records == ("passages/{{ output.get.json.id }}",)


def test_a_type_has_to_be_shown_more_than_once(recorded: list[Exchange]) -> None:
    first = [e for e in recorded if e.workflow_id == recorded[0].workflow_id]
    with pytest.raises(NotLearnable, match="at least 2"):
        learn(first, first[0].workflow_type)
    with pytest.raises(NotLearnable, match="0 workflows"):
        learn(recorded, "unknown")


def test_strange_spellings_are_left_to_a_person() -> None:
    odd = [exchange(str(n), "s", f'{{ "a" : {n} }}', "x") for n in range(3)]
    with pytest.raises(NotLearnable, match="not spelled"):
        learn(odd, "t")


def exchange(workflow: str, stage: str, body: Any, output: str, **more: Any) -> Exchange:
    text = body if isinstance(body, str) else json.dumps(body)
    return Exchange(
        "t", workflow, StageKind.CHAT, "m", text.encode(), Output(text=output, finish="stop"), stage, **more
    )


def test_a_value_that_comes_from_nowhere_is_an_input_and_its_stage_can_not_run_ahead() -> None:
    exchanges = [
        one
        for n in range(4)
        for one in (
            exchange(str(n), "ask", {"q": f"question {n}"}, json.dumps({"next": f"tool {n}"})),
            exchange(str(n), "use", {"tool": f"tool {n}", "nonce": f"nonce {n * 7}"}, "done"),
        )
    ]
    template = learned(exchanges, "t")
    assert {item.name for item in template.inputs} == {"q", "nonce"}
    assert template.stage("use").speculable is Speculable.NO
    assert not template.decision_points
    assert check(template, exchanges).holds


def test_braces_quotes_and_line_breaks_of_constants_survive() -> None:
    constant = "{{ x }} {% y %} {# z #} \"'\\ é\n  {"
    exchanges = [
        exchange(str(n), "ask", {"system": constant, "q": f"{constant}{n * 13} is odd {constant}"}, f"{n}{n}")
        for n in range(3)
    ]
    template = learned(exchanges, "t")
    assert check(template, exchanges).holds
    assert template.inputs[0].where.origin is Origin.REQUEST


def test_a_choice_among_tools_of_a_list_is_looked_up() -> None:
    tools = [{"name": f"tool_{k}", "schema": {"type": "object", "n": k * 1.5}} for k in range(3)]
    exchanges = [
        one
        for n in range(6)
        for one in (
            exchange(
                str(n),
                "route",
                {"tools": tools[: 2 + n % 2], "q": f"q{n}"},
                json.dumps({"t": f"tool_{n % 2}"}),
            ),
            exchange(str(n), "call", {"schema": tools[n % 2]["schema"], "q": f"q{n}"}, "ok"),
        )
    ]
    template = learned(exchanges, "t")
    assert "selectattr('name', 'equalto', selection)" in template.stage("call").request
    assert check(template, exchanges).holds


def test_the_most_frequent_type_is_named_first(recorded: list[Exchange]) -> None:
    assert set(workflow_types(recorded)) == set(TYPES)
