from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.domain.engine import AgentKind
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.config import EngineAgentSettings
from dynbranch.engine_agent.engines.embedded import EmbeddedEngine
from dynbranch.engine_agent.engines.openai import OpenAiEngine
from dynbranch.engine_agent.engines.sglang import SglangEngine
from dynbranch.engine_agent.engines.vllm import VllmEngine
from dynbranch.engine_agent.main import engine_of, limits_of
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.config import ConfigError, load_settings

P = "DYNBRANCH_ENGINE_AGENT_"


def load(**variables: str) -> EngineAgentSettings:
    environ = {P + name: value for name, value in variables.items()}
    return load_settings(EngineAgentSettings, service="engine_agent", environ=environ)


def test_defaults_run_the_embedded_engine() -> None:
    settings = load()
    assert settings.kind is AgentKind.EMBEDDED and settings.context_tokens == 4096
    assert isinstance(engine_of(settings, SystemClock()), EmbeddedEngine)


def test_an_openai_engine() -> None:
    settings = load(
        KIND="openai",
        ENGINE_URL="http://127.0.0.1:1",
        FINGERPRINT_FACTS="weights=sha256:1, chat_template = mine",
        LEVEL="batch_invariant",
        COMMIT_BUDGET_MS="50",
    )
    assert settings.facts == {"weights": "sha256:1", "chat_template": "mine"}
    assert settings.level is Level.BATCH_INVARIANT
    assert limits_of(settings).commit_budget_s == 0.05
    assert isinstance(engine_of(settings, SystemClock()), OpenAiEngine)


def test_a_vllm_engine_is_attached_to_or_started() -> None:
    attached = load(KIND="vllm", ENGINE_URL="http://127.0.0.1:1")
    started = load(KIND="vllm", VLLM_MODEL="m", VLLM_ARGUMENTS="--seed 1 --override '{\"a\": 1}'")
    for settings in (attached, started):
        assert isinstance(engine_of(settings, SystemClock()), VllmEngine)
    with pytest.raises(ConfigError, match="VLLM_ARGUMENTS"):
        engine_of(load(KIND="vllm", VLLM_MODEL="m", VLLM_ARGUMENTS="'"), SystemClock())


def test_an_sglang_engine() -> None:
    assert isinstance(
        engine_of(load(KIND="sglang", ENGINE_URL="http://127.0.0.1:1"), SystemClock()), SglangEngine
    )


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"KIND": "openai"}, "engine_url"),
        ({"KIND": "tool"}, "tools_file"),
        ({"KIND": "sglang"}, "engine_url"),
        ({"KIND": "vllm"}, "engine_url or vllm_model"),
        ({"KIND": "other"}, "KIND"),
        ({"SLOTS": "0"}, "SLOTS"),
        ({"FINGERPRINT_FACTS": "nonsense"}, "name=value"),
        ({"LEVEL": "sampled"}, "LEVEL"),
        ({"MODLE_ID": "x"}, "MODEL_ID"),
    ],
)
def test_wrong_settings_are_named(variables: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(**variables)


def test_a_missing_tools_file_is_a_wrong_setting(tmp_path: Path) -> None:
    settings = load(KIND="tool", TOOLS_FILE=str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        engine_of(settings, SystemClock())


def test_readme_names_every_setting() -> None:
    readme = (Path(__file__).parents[3] / "services/engine_agent/README.md").read_text(encoding="utf-8")
    for name, field in EngineAgentSettings.model_fields.items():
        assert f"| `{P}{name.upper()}` | {field.description} |" in readme


@pytest.mark.parametrize("url", ["engine:8000", "ftp://engine", "http://", "http://http://engine:8000"])
def test_what_is_no_url_of_an_engine_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        EngineAgentSettings(kind=AgentKind.OPENAI, engine_url=url)
