"""Settings of the controller that are more than one value."""

from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.controller.config import ControllerSettings
from dynbranch.controller.core.branches.admission import PolicyName
from dynbranch.runtime.config import ConfigError, load_settings


def read(**environ: str) -> ControllerSettings:
    variables = {f"DYNBRANCH_CONTROLLER_{name}": value for name, value in environ.items()}
    return load_settings(ControllerSettings, service="controller", environ=variables)


def test_branches_are_priced_unless_told_otherwise() -> None:
    settings = read()
    controls = settings.controls()
    assert controls.policy is PolicyName.PRICED
    assert (controls.policies, controls.engine_s, controls.dryrun) == ({}, None, False)


def test_policies_and_budgets_are_written_by_place() -> None:
    controls = read(
        POLICIES="routing=always, @acme=off", ENGINE_S="60", ENGINE_S_OF="acme=600", DRYRUN="true"
    ).controls()
    assert controls.policies == {"routing": PolicyName.ALWAYS, "@acme": PolicyName.OFF}
    assert (controls.engine_s, controls.engine_s_of, controls.dryrun) == (60.0, {"acme": 600.0}, True)


def test_a_file_has_them_as_tables(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('[controller.policies]\nrouting = "off"\n[controller.engine_s_of]\nacme = 3\n')
    settings = load_settings(
        ControllerSettings, service="controller", environ={"DYNBRANCH_CONFIG": str(path)}
    )
    assert settings.policies == {"routing": PolicyName.OFF} and settings.engine_s_of == {"acme": 3.0}


@pytest.mark.parametrize("written", ["routing", "routing=sometimes", "=off", "{}"])
def test_what_is_no_policy_is_said(written: str) -> None:
    with pytest.raises(ConfigError, match="DYNBRANCH_CONTROLLER_POLICIES"):
        read(POLICIES=written)
