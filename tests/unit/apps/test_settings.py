"""Every setting of every service is told to people."""

from __future__ import annotations

import pytest
from dynbranch.cli.failures import CliFailure
from dynbranch.cli.settings_command import settings_of
from dynbranch.runtime.config import SERVICES


@pytest.mark.parametrize("service", SERVICES)
def test_each_has_a_variable_and_a_meaning(service: str) -> None:
    settings = settings_of(service)
    assert all(one["variable"].startswith("DYNBRANCH_") and one["meaning"] for one in settings)
    assert any(one["variable"].endswith("_LISTEN") for one in settings)


def test_what_is_no_service_is_refused() -> None:
    with pytest.raises(CliFailure, match="no service"):
        settings_of("gatway")
