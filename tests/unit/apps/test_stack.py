"""Which processes a stack is made of, and what each is told."""

from __future__ import annotations

from pathlib import Path

from dynbranch.demo.stack import TEMPLATES, Stack, StackOptions


def told(options: StackOptions) -> dict[str, dict[str, str]]:
    return {
        spec.name: {k: v for k, v in spec.environ.items() if k.startswith("DYNBRANCH_")}
        for spec in Stack(options).specs()
    }


def test_embedded_engines_by_default(tmp_path: Path) -> None:
    specs = told(StackOptions(tmp_path, engines=2))
    assert list(specs) == ["csl", "controller", "engine-1", "engine-2", "tools", "passages", "gateway"]
    assert specs["engine-2"]["DYNBRANCH_ENGINE_AGENT_KIND"] == "embedded"


def test_engines_of_the_users_own_in_their_place(tmp_path: Path) -> None:
    urls = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
    facts = ("chat_template=none", "weights=none")
    specs = told(StackOptions(tmp_path, engine_urls=urls, engine_facts=facts, floor_gateway=True))
    engines = [specs["engine-1"], specs["engine-2"]]
    assert [e["DYNBRANCH_ENGINE_AGENT_ENGINE_URL"] for e in engines] == list(urls)
    assert {e["DYNBRANCH_ENGINE_AGENT_FINGERPRINT_FACTS"] for e in engines} == {
        "chat_template=none,weights=none"
    }
    agents = specs["gateway"]["DYNBRANCH_GATEWAY_AGENTS"].split(",")
    assert [e["DYNBRANCH_ENGINE_AGENT_LISTEN"] for e in engines] == agents[:2]
    assert specs["gateway-floor"]["DYNBRANCH_ENABLED"] == "false"


def test_the_controller_foresees_with_the_demos_templates(tmp_path: Path) -> None:
    specs = told(StackOptions(tmp_path, engines=2, unforeseeing_gateway=True, policy="always"))
    controller, gateway = specs["controller"], specs["gateway"]
    assert Path(controller["DYNBRANCH_CONTROLLER_TEMPLATES"]) == TEMPLATES
    assert controller["DYNBRANCH_CONTROLLER_POLICY"] == "always"
    assert controller["DYNBRANCH_CONTROLLER_AGENTS"] == gateway["DYNBRANCH_GATEWAY_AGENTS"]
    assert controller["DYNBRANCH_CONTROLLER_CSL"] == gateway["DYNBRANCH_GATEWAY_CSL"]
    alone = specs["gateway-unforeseeing"]
    assert "DYNBRANCH_GATEWAY_CONTROLLER" not in alone
    assert alone["DYNBRANCH_GATEWAY_CSL"] == gateway["DYNBRANCH_GATEWAY_CSL"]


def test_settings_beyond_those_of_the_stack_itself(tmp_path: Path) -> None:
    specs = told(StackOptions(tmp_path, settings={"DYNBRANCH_CONTROLLER_FILLS": "1"}, templates=None))
    assert specs["controller"]["DYNBRANCH_CONTROLLER_FILLS"] == "1"
    assert "DYNBRANCH_CONTROLLER_TEMPLATES" not in specs["controller"]


def test_each_service_can_show_its_counts_at_a_port_of_its_own(tmp_path: Path) -> None:
    specs = told(StackOptions(tmp_path, metrics=True))
    ports = {name: spec.get("DYNBRANCH_METRICS_PORT") for name, spec in specs.items()}
    assert ports.pop("gateway") is None
    assert len(set(ports.values())) == len(ports) and all(ports.values())
