"""A place that a person names and that can not be used: a message and an advice, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.cli.main import app
from typer.testing import CliRunner

PLACES = ["/proc/nothing/here", "{tmp}/file/below"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "command",
    [
        ["up", "--port", "0", "--state-dir", "{place}"],
        ["up", "--port", "0", "--traces", "--state-dir", "{place}"],
        ["demo", "--state-dir", "{place}"],
        ["demo", "--branches", "--state-dir", "{place}"],
        ["demo", "--timeline", "{tmp}/picture.svg", "--state-dir", "{place}"],
        ["csl", "backup", "{tmp}", "{place}"],
        ["csl", "restore", "{tmp}", "{place}"],
        ["template", "check", "{place}"],
        ["template", "learn", "{place}"],
    ],
)
def test_a_place_that_can_not_be_used_is_said(tmp_path: Path, place: str, command: list[str]) -> None:
    (tmp_path / "file").write_text("")
    named = place.format(tmp=tmp_path)
    shown = CliRunner().invoke(app, [part.format(tmp=tmp_path, place=named) for part in command])
    assert shown.exit_code == 1, shown.output
    assert isinstance(shown.exception, SystemExit), shown.exception
    assert "dynbranch: " in shown.output
    assert "Traceback" not in shown.output
