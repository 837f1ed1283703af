"""``dynbranch template``, as people run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from dynbranch.cli.main import app
from dynbranch.demo.flows import MENUS, ROUTING_CHAIN
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.records import DATA
from dynbranch.demo.rehearsal import traffic
from dynbranch.templates.traffic import line_of
from typer.testing import CliRunner, Result

SHIPPED = DATA.parent / "templates"


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["template", *map(str, arguments)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traffic")
    store = PassageStore(folder / "passages.sqlite")
    made = traffic(store, "a-model", (ROUTING_CHAIN, MENUS))
    store.close()
    file = folder / "traffic.jsonl"
    file.write_text("".join(map(line_of, made)), encoding="utf-8")
    return file


def test_a_shipped_template_holds(recorded: Path) -> None:
    done = run("check", SHIPPED / "menus.yaml", "--against", recorded)
    assert done.exit_code == 0, done.output
    assert "every request is written byte for byte" in done.output


def test_a_file_alone_is_checked_too() -> None:
    done = run("check", SHIPPED / "react.yaml")
    assert done.exit_code == 0
    assert "valid; react, 5 stages, 1 decision points" in done.output
    assert json.loads(run("check", SHIPPED / "react.yaml", "--json").output)["decision_points"] == ["entity"]


def test_a_difference_is_shown_and_ends_with_1(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "menus.yaml"
    file.write_text(
        (SHIPPED / "menus.yaml").read_text().replace("I pick: {{ selection", "I pick {{ selection")
    )
    done = run("check", file, "--against", recorded)
    assert done.exit_code == 1
    assert "act no. 1: differs at byte" in done.output
    assert "in constant text" in done.output
    told = json.loads(run("check", file, "--against", recorded, "--json").output)
    assert told["holds"] is False
    assert told["stages"]["act"]["differences"][0]["sent"]


def test_a_bad_template_is_told_with_its_line(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text((SHIPPED / "menus.yaml").read_text().replace("window: wait", "window: waits"))
    done = run("check", file, "--against", recorded)
    assert done.exit_code == 1
    assert "bad.yaml:46: decision_points.pick.window: Input should be 'decode' or 'wait'" in done.output


def test_traffic_of_other_types_is_no_proof(recorded: Path) -> None:
    done = run("check", SHIPPED / "react.yaml", "--against", recorded)
    assert done.exit_code == 1
    assert "It has requests of these types: " in done.output


def test_a_proposal_can_be_checked(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "learned.yaml"
    done = run("learn", recorded, "--workflow-type", ROUTING_CHAIN, "-o", file)
    assert done.exit_code == 0, done.output
    assert re.search(r"(\d+) of \1 recorded requests are written byte for byte", done.output)
    assert run("check", file, "--against", recorded).exit_code == 0


def test_a_proposal_is_told_to_programs_too(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "learned.yaml"
    done = run("learn", recorded, "--workflow-type", MENUS, "--json", "-o", file)
    told = json.loads(done.output)
    assert done.exit_code == 0 and told["holds"] is True and told["workflow_type"] == MENUS
    assert told["template"] == file.read_text()
    assert json.loads(run("learn", recorded, "--workflow-type", MENUS, "--json").output)["file"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("learn", "RECORDED"), "has requests of 2 workflow types"),
        (("learn", "RECORDED", "--workflow-type", "x"), "It has requests of these types: "),
        (("learn", "nothing.jsonl"), "can not be read"),
        (("check", "nothing.yaml"), "can not be read"),
        (("check", "SHIPPED", "--against", "SHIPPED"), ":1: Invalid JSON"),
    ],
)
def test_what_a_person_can_mend_is_one_line(arguments: tuple[str, ...], says: str, recorded: Path) -> None:
    places = {"RECORDED": str(recorded), "SHIPPED": str(SHIPPED / "menus.yaml")}
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert done.exit_code == 1
    assert says in done.output
    assert "Traceback" not in done.output
