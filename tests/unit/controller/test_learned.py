"""The file of what admission has learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.snapshot import snapshot_of
from dynbranch.controller.learned import Learned
from dynbranch.runtime.clock import SystemClock
from unit.controller.pricing.loads import KEY, Town


def learned() -> Gate:
    town = Town()
    for _ in range(12):
        town.branch(True)
    return town.gate


@pytest.mark.promise("C3.restart")
async def test_what_was_written_is_taken_up(tmp_path: Path) -> None:
    path, before = tmp_path / "made" / "learned.json", learned()
    await Learned(path, SystemClock()).write(before)
    assert [file.name for file in path.parent.iterdir()] == ["learned.json"]
    after = await Learned(path, SystemClock()).gate(Gate)
    assert snapshot_of(after) == snapshot_of(before) and after.classes.get(KEY).n == 12


async def test_without_a_file_it_begins_anew(tmp_path: Path) -> None:
    gate = await Learned(tmp_path / "none.json", SystemClock()).gate(Gate)
    assert gate.classes.get(KEY).n == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can not be read"),
        ('{"version": 7}', "version 7"),
        ("[]", "no version"),
        ('{"version": 1, "ranks": [1]}', "damaged"),
    ],
)
async def test_what_can_not_be_read_is_set_aside_and_said(
    tmp_path: Path, text: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.json"
    path.write_text(text)
    there = Learned(path, SystemClock())
    gate = await there.gate(Gate)
    assert gate.classes.get(KEY).n == 0 and says in caplog.text
    assert (tmp_path / "learned.json.unreadable").read_text() == text and not path.exists()
    await there.write(gate)
    assert json.loads(path.read_text())["version"] == 1


async def test_a_file_that_can_not_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blocked").write_text("")
    await Learned(tmp_path / "blocked" / "learned.json", SystemClock()).write(Gate())
    assert "could not be written" in caplog.text
