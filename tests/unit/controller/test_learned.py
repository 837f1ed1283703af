"""The file of what admission has learned, and of what tenants have used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dynbranch.controller.core.branches.budgets import Ledger
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.snapshot import VERSION, snapshot_of
from dynbranch.controller.learned import Learned
from dynbranch.runtime.clock import ManualClock, SystemClock
from unit.controller.pricing.loads import KEY, Town

HOURLY_S = 360.0
"""A tenth of a second is free again each second."""


def learned() -> Gate:
    town = Town()
    for _ in range(12):
        town.branch(True)
    return town.gate


def bounded() -> Ledger:
    return Ledger(HOURLY_S)


@pytest.mark.promise("C3.restart")
async def test_what_was_written_is_taken_up(tmp_path: Path) -> None:
    path, before = tmp_path / "made" / "learned.json", learned()
    await Learned(path, SystemClock(), gate=lambda: before).write()
    assert [file.name for file in path.parent.iterdir()] == ["learned.json"]
    after = Learned(path, SystemClock())
    await after.take_up()
    assert snapshot_of(after.gate) == snapshot_of(before) and after.gate.classes.get(KEY).n == 12


@pytest.mark.promise("C3.restart", "C3.controls")
async def test_what_tenants_have_used_is_used_after_a_restart_but_for_what_time_has_freed(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    before = Learned(tmp_path / "learned.json", clock, ledger=bounded)
    before.ledger.spend("acme", 100.0, clock.now())
    before.ledger.spend("idle", 1.0, clock.now())
    clock.advance(100.0)
    await before.write()
    clock.advance(200.0)
    after = Learned(tmp_path / "learned.json", clock, ledger=bounded)
    await after.take_up()
    assert after.ledger.of("acme", clock.now()) == (HOURLY_S, pytest.approx(70.0))
    assert after.ledger.of("idle", clock.now()) == (HOURLY_S, 0.0)
    assert [tenant for tenant, _ in after.ledger.rows(clock.now())] == ["acme"]
    # Who is no longer bounded is not, whatever was written.
    free = Learned(tmp_path / "learned.json", clock)
    await free.take_up()
    assert free.ledger.of("acme", clock.now()) == (None, 0.0)


async def test_a_clock_that_was_put_back_frees_nothing(tmp_path: Path) -> None:
    late, early = ManualClock(unix_ms=1_700_000_005_000), ManualClock(unix_ms=1_700_000_000_000)
    before = Learned(tmp_path / "learned.json", late, ledger=bounded)
    before.ledger.spend("acme", 100.0, late.now())
    await before.write()
    after = Learned(tmp_path / "learned.json", early, ledger=bounded)
    await after.take_up()
    assert after.ledger.of("acme", early.now()) == (HOURLY_S, pytest.approx(100.0))


@pytest.mark.promise("C3.restart")
async def test_a_file_of_the_version_before_is_taken_up(tmp_path: Path) -> None:
    path, before = tmp_path / "learned.json", learned()
    path.write_text(json.dumps({**snapshot_of(before), "version": 1}))
    after = Learned(path, SystemClock(), ledger=bounded)
    await after.take_up()
    assert after.gate.classes.get(KEY).n == 12 and path.exists()
    await after.write()
    assert json.loads(path.read_text())["version"] == VERSION


async def test_without_a_file_it_begins_anew(tmp_path: Path) -> None:
    there = Learned(tmp_path / "none.json", SystemClock())
    await there.take_up()
    assert there.gate.classes.get(KEY).n == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can not be read"),
        ('{"version": 7}', "version 7"),
        ("[]", "no version"),
        ('{"version": 1, "ranks": [1]}', "damaged"),
        ('{"version": 2, "spent": []}', "damaged"),
        ('{"version": 2, "spent": {"engine_s": [["acme", -1]]}}', "damaged"),
        ('{"version": 2, "spent": {"engine_s": [["acme", "1"]]}}', "damaged"),
    ],
)
async def test_what_can_not_be_read_is_set_aside_and_said(
    tmp_path: Path, text: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.json"
    path.write_text(text)
    there = Learned(path, SystemClock(), ledger=bounded)
    await there.take_up()
    assert there.gate.classes.get(KEY).n == 0 and says in caplog.text
    assert there.ledger.rows(SystemClock().now()) == []
    assert (tmp_path / "learned.json.unreadable").read_text() == text and not path.exists()
    await there.write()
    assert json.loads(path.read_text())["version"] == VERSION


async def test_a_file_that_can_not_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blocked").write_text("")
    await Learned(tmp_path / "blocked" / "learned.json", SystemClock()).write()
    assert "could not be written" in caplog.text
