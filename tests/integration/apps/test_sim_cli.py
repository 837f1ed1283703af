"""``dynbranch sim``, as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dynbranch.cli.main import app
from dynbranch.demo.flows import ROUTING_CHAIN
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.rehearsal import traffic
from dynbranch.demo.stack import TEMPLATES
from dynbranch.templates.traffic import line_of
from typer.testing import CliRunner, Result


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["sim", *map(str, arguments)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traffic")
    store = PassageStore(folder / "passages.sqlite")
    made = traffic(store, "a-model", (ROUTING_CHAIN,))
    store.close()
    file = folder / "traffic.jsonl"
    file.write_text("".join(map(line_of, made)), encoding="utf-8")
    return file


def test_a_workload_is_simulated_in_the_arms_that_are_asked_for() -> None:
    done = run(
        "--workload", "routing", "--count", "8", "--rate", "0.5", "--arms", "floor,dynbranch", "--json"
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert list(told["arms"]) == ["floor", "dynbranch"] and told["workflows"] == 8
    floor, ours = told["arms"].values()
    assert floor["mean_over_floor"]["value"] == 1.0 and floor["outcomes"].keys() == {"miss"}
    assert 0 < ours["mean_over_floor"]["value"] < 1 and ours["wrong"] == 0


def test_own_traffic_is_replayed(recorded: Path) -> None:
    template = TEMPLATES / f"{ROUTING_CHAIN}.yaml"
    done = run("--trace", recorded, "--template", template, "--arms", "floor,c1", "--engines", "2")
    assert done.exit_code == 0, done.output
    assert "traffic traffic: " in done.output and "on 2 × h200-qwen3-32b, 64 slots each" in done.output
    assert "requests in" in done.output and "c1" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "say what is simulated"),
        (("--workload", "nothing"), "there is no workload 'nothing'"),
        (("--workload", "routing", "--count", "2", "--arms", "none"), "there is no arm 'none'"),
        (("--workload", "routing", "--count", "2", "--preset", "none"), "there is no preset 'none'"),
        (("--workload", "routing", "--count", "2", "--preset", "fixed"), "is no engine that requests share"),
        (("--workload", "routing", "--template", TEMPLATES / "menus.yaml"), "--template is for --trace"),
        (("--trace", TEMPLATES / "menus.yaml"), "menus.yaml:1"),
        (("--trace", "RECORDED", "--template", TEMPLATES / "menus.yaml"), "no request of a model"),
    ],
)
def test_what_a_person_can_mend_is_one_line(
    arguments: tuple[str | Path, ...], says: str, recorded: Path
) -> None:
    done = run(*(recorded if one == "RECORDED" else one for one in arguments))
    assert done.exit_code == 1 and says in done.output, done.output
    assert "Traceback" not in done.output
