"""The shipped templates write what the demo's harness sends, byte for byte, and so do fills of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dynbranch.demo.flows import MENUS, REACT, ROUTING_CHAIN, SUB_AGENTS
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.records import DATA, dialogues, passages
from dynbranch.demo.rehearsal import traffic
from dynbranch.domain.template import Template
from dynbranch.rendering.watching import load_template
from dynbranch.templates.check import check
from dynbranch.templates.traffic import Exchange, line_of, read_traffic

TEMPLATES = DATA.parent / "templates"
TYPES = (ROUTING_CHAIN, REACT, SUB_AGENTS, MENUS)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Exchange]]:
    store = PassageStore(tmp_path_factory.mktemp("passages") / "passages.sqlite")
    store.load(passages())
    yield traffic(store, "a-model")
    store.close()


def shipped(workflow_type: str) -> Template:
    return load_template(TEMPLATES / f"{workflow_type}.yaml").template


@pytest.mark.promise("C2.template")
@pytest.mark.parametrize("workflow_type", TYPES)
def test_every_request_is_written_byte_for_byte(workflow_type: str, recorded: list[Exchange]) -> None:
    report = check(shipped(workflow_type), recorded)
    assert not [count.differences for count in report.stages.values() if count.differences]
    assert report.holds
    assert all(count.seen for count in report.stages.values())


@pytest.mark.promise("C2.template")
@pytest.mark.parametrize("workflow_type", TYPES)
def test_every_stage_of_a_chain_is_written_before_the_decision(
    workflow_type: str, recorded: list[Exchange]
) -> None:
    template = shipped(workflow_type)
    report = check(template, recorded)
    for point in template.decision_points:
        for stage in point.then:
            assert report.stages[stage].fills == report.stages[stage].seen


@pytest.mark.parametrize("workflow_type", TYPES)
def test_requests_are_told_apart_without_their_headers(workflow_type: str, recorded: list[Exchange]) -> None:
    report = check(shipped(workflow_type), recorded)
    assert {s: count.told_apart for s, count in report.stages.items()} == {
        s: count.seen for s, count in report.stages.items()
    }


@pytest.mark.parametrize("workflow_type", TYPES)
def test_every_decision_is_read_and_was_on_the_menu(workflow_type: str, recorded: list[Exchange]) -> None:
    template = shipped(workflow_type)
    report = check(template, recorded)
    for point in template.decision_points:
        count = report.points[point.name]
        assert count.asked == count.read > 0
        if point.candidates.menu is not None and not point.candidates.unused:
            assert count.in_menu == count.offered == count.read


def test_the_demo_s_workflows_go_more_than_one_round(recorded: list[Exchange]) -> None:
    rounds = Counter((e.workflow_type, e.workflow_id, e.stage) for e in recorded)
    for workflow_type, stage in ((ROUTING_CHAIN, "route"), (REACT, "think"), (SUB_AGENTS, "plan")):
        assert max(n for (t, _, s), n in rounds.items() if (t, s) == (workflow_type, stage)) > 1


def test_traffic_is_read_back_as_it_was_written(recorded: list[Exchange], tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    file.write_text("".join(line_of(exchange) for exchange in recorded), encoding="utf-8")
    assert read_traffic(file) == recorded


def test_the_dialogues_come_with_their_licence() -> None:
    notice = (DATA / "sgd" / "NOTICE.md").read_text()
    assert "dialogues.jsonl" in notice
    assert "Creative Commons Attribution-ShareAlike 4.0" in notice
    for dialogue in dialogues():
        for turn in dialogue.turns:
            assert turn.pick in turn.options
            assert len(set(turn.options)) == len(turn.options)


def test_bodies_are_json_that_a_client_could_have_sent(recorded: list[Exchange]) -> None:
    for exchange in recorded:
        body = json.loads(exchange.body)
        spelled = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        assert exchange.body in (spelled, json.dumps(body).encode())
