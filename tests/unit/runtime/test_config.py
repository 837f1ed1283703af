from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.runtime.config import ConfigError, load_settings, variable
from pydantic import Field
from pydantic_settings import BaseSettings


class Settings(BaseSettings):
    listen: str = Field("127.0.0.1:0", description="host:port")
    slots: int = Field(4, ge=1, description="how many run at once")
    agents: tuple[str, ...] = Field((), description="addresses")
    labels: list[str] | None = Field(None, description="names")
    enabled: bool = Field(True, description="off switch", validation_alias="DYNBRANCH_ENABLED")


def load(**environ: str) -> Settings:
    return load_settings(Settings, service="csl", environ=environ)


def test_defaults_hold_when_nothing_is_set() -> None:
    settings = load()
    assert (settings.listen, settings.slots, settings.agents, settings.enabled) == (
        "127.0.0.1:0",
        4,
        (),
        True,
    )


def test_the_environment_sets_fields_lists_and_global_switches() -> None:
    settings = load(
        DYNBRANCH_CSL_SLOTS="7",
        DYNBRANCH_CSL_AGENTS="a:1, b:2,",
        DYNBRANCH_CSL_LABELS="x",
        DYNBRANCH_ENABLED="false",
        DYNBRANCH_GATEWAY_SLOTS="9",
        SLOTS="11",
    )
    assert (settings.slots, settings.agents, settings.labels) == (7, ("a:1", "b:2"), ["x"])
    assert not settings.enabled


def test_variables_without_our_prefix_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTS", "11")
    monkeypatch.setenv("DYNBRANCH_CSL_LISTEN", "127.0.0.1:9")
    settings = load_settings(Settings, service="csl")
    assert (settings.slots, settings.listen) == (4, "127.0.0.1:9")


def test_an_unknown_variable_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="DYNBRANCH_CSL_SLOT; the nearest known one is DYNBRANCH_CSL_SLOTS"):
        load(DYNBRANCH_CSL_SLOT="3")


def test_a_wrong_value_names_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"DYNBRANCH_CSL_SLOTS: .*greater than or equal to 1"):
        load(DYNBRANCH_CSL_SLOTS="0")
    with pytest.raises(ConfigError, match="DYNBRANCH_ENABLED"):
        load(DYNBRANCH_ENABLED="perhaps")


def test_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dynbranch.toml"
    file.write_text('[csl]\nslots = 5\nagents = ["c:3"]\nenabled = false\n[gateway]\nwhatever = 1\n')
    settings = load(DYNBRANCH_CONFIG=str(file), DYNBRANCH_CSL_SLOTS="6")
    assert (settings.slots, settings.agents, settings.enabled) == (6, ("c:3",), False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[csl]\nslot = 5\n", r"unknown key slot in \[csl\]; the nearest known one is slots"),
        ("[csr]\nslots = 5\n", r"unknown table \[csr\]; the nearest known one is csl"),
        ("csl = 5\n", "csl must be a table"),
        ("[csl\n", "dynbranch.toml"),
        ("[csl]\nslots = " + "[" * 5000 + "]" * 5000, "dynbranch.toml"),
        ("[csl]\nslots = " + "9" * 5000, "dynbranch.toml"),
        ("[csl]\nslots = 2020-99-99\n", "dynbranch.toml"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "dynbranch.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load(DYNBRANCH_CONFIG=str(file))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(DYNBRANCH_CONFIG=str(tmp_path / "none.toml"))


def test_variable_names() -> None:
    assert variable(Settings, "engine_agent", "slots") == "DYNBRANCH_ENGINE_AGENT_SLOTS"
    assert variable(Settings, "csl", "enabled") == "DYNBRANCH_ENABLED"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("DYNBRANCH_ENABLE", "DYNBRANCH_ENABLED"), ("DYNBRANCH_GATWAY_CSL", "DYNBRANCH_GATEWAY_CSL")],
)
def test_a_misspelt_variable_of_any_kind_is_refused(name: str, nearest: str) -> None:
    class Settings(BaseSettings):
        csl: str = ""

    with pytest.raises(ConfigError, match=nearest):
        load_settings(Settings, service="gateway", environ={name: "false"})


def test_other_services_shared_variables_and_kubernetes_links_are_nobodys_mistake() -> None:
    class Settings(BaseSettings):
        listen: str = ""

    others = ("DYNBRANCH_CSL_DATA_DIR", "DYNBRANCH_ENABLED", "DYNBRANCH_GATEWAY_SERVICE_HOST")
    load_settings(Settings, service="gateway", environ=dict.fromkeys(others, "x"))
    load_settings(Settings, service="gateway", environ={"DYNBRANCH_GATEWAY_PORT": "tcp://10.0.0.1:80"})
    with pytest.raises(ConfigError):
        load_settings(Settings, service="gateway", environ={"DYNBRANCH_GATEWAY_PORT": "8080"})
