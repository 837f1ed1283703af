"""The arms of the benchmark of branches, and what it makes of runs."""

from __future__ import annotations

import json
from pathlib import Path

from dynbranch.demo.branch_arms import AHEAD_ONLY, FLOOR, WRONG, WRONG_KINDS, write_templates
from dynbranch.demo.branch_runs import ARMS, KINDS, Run, Seen, figures_of
from dynbranch.demo.flows import MENUS, ROUTING_CHAIN
from dynbranch.demo.losers import TEMPLATE, losing
from dynbranch.demo.playing import Played, Step
from dynbranch.demo.rehearsal import performances
from dynbranch.domain.template import WorkflowContext
from dynbranch.rendering.following import Follower
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.reading import parse_template


def test_each_arm_that_runs_ahead_has_templates_of_its_own(tmp_path: Path) -> None:
    write_templates(tmp_path, ARMS)
    types = {parse_template(file.read_text(), file.name).workflow_type for file in tmp_path.glob("*.yaml")}
    ahead = {f"{kind}{suffix}" for kind in KINDS for suffix in ("-alone", "-both")}
    assert types == ahead | {f"{kind}-wrong" for kind in WRONG_KINDS}


def test_a_wrong_candidate_is_on_no_menu_and_writes_a_request_all_the_same(tmp_path: Path) -> None:
    write_templates(tmp_path, (WRONG,))
    for kind in WRONG_KINDS:
        text = (tmp_path / f"{kind}-wrong.yaml").read_text()
        template = parse_template(text, kind)
        follower, renderer = Follower(template), JinjaRenderer(template)
        ask = next(next(one for one in performances("m") if one.workflow_type == kind).flow)
        arrived = follower.arrived(WorkflowContext(), ask.stage, json.loads(ask.body))
        offered = [value for value in arrived.context.inputs["short" if kind == ROUTING_CHAIN else "menu"]]
        right = ask.body.decode()
        assert offered
        for candidate in offered:
            assert f'{candidate}"' not in right and f"{candidate}\\n" not in right
        if kind == ROUTING_CHAIN:
            written = json.loads(renderer.render("arguments", arrived.context, offered[0]))
            assert written["messages"][0]["content"].startswith("Write arguments")


def step(stage: str, outcome: str, latency_ms: float, result: str = "same") -> Step:
    return Step(stage, "chat", outcome, 0.0, latency_ms, stage.encode(), result, result)


def played(kind: str, *steps: Step) -> Played:
    return Played(kind, "r1", "w", steps, sum(one.latency_ms for one in steps))


def test_a_turn_is_from_the_pick_to_what_is_told() -> None:
    floor = played(MENUS, step("offer", "bypass", 50), step("act", "bypass", 60), step("tell", "bypass", 40))
    ahead = played(MENUS, step("offer", "miss", 50), step("act", "promoted", 5), step("tell", "adopted", 45))
    figures = figures_of(Seen((Run(FLOOR, floor), Run(AHEAD_ONLY, ahead)), ()))
    assert figures["hci_turn_reduction_c1_off"].value == 0.5
    assert figures["finished_at_demand_share"].value == 0.5
    assert figures["byte_equal_share"].value == 1.0
    assert figures["unsafe_splices"].value == 0 and figures["unsafe_splices"].n == 2


def test_a_reused_result_that_executing_would_not_have_given_is_counted() -> None:
    floor = played(ROUTING_CHAIN, step("route", "bypass", 10))
    ahead = played(ROUTING_CHAIN, step("route", "hit", 1, "another"))
    figures = figures_of(Seen((Run(FLOOR, floor), Run(AHEAD_ONLY, ahead)), ()))
    assert figures["unsafe_splices"].value == 1
    assert figures["byte_equal_share"].value == 0.0


def test_the_losers_template_is_one_and_reads_its_decision() -> None:
    template = parse_template(TEMPLATE.replace("LONGEST", "9"), "losers.yaml")
    ask = next(losing("m", 3))
    arrived = Follower(template).arrived(WorkflowContext(), ask.stage, json.loads(ask.body))
    assert arrived.context.inputs["offered"] == ["tea", "coffee"]
    written = json.loads(JinjaRenderer(template).render("tell", arrived.context, "tea"))
    assert written["messages"][0]["content"] == "Tell guest 3 all about tea." and written["max_tokens"] == 9
