"""Which processes a stack is made of, and what each is told."""

from __future__ import annotations

from pathlib import Path

from dynbranch.demo.stack import Stack, StackOptions


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
