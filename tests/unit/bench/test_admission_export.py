"""A decision is made again from what the controller tells of the branch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dynbranch.bench.admission_export import OtherPrices, snapshot_of
from dynbranch.bench.admission_snapshots import repriced, snapshot_from, snapshot_json
from dynbranch.cli.main import app
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.prices import Curve, PriceCurves, prior_curves
from typer.testing import CliRunner
from unit.controller.branches.world import world

STEEP = PriceCurves(Curve(((0.0, 900.0),)), Curve(((0.0, 900.0),)))


async def told(folder: Path, gate: Gate) -> dict[str, Any]:
    """A branch that was decided on beside the store's and the agent's twins."""
    async with world(folder, admission=LoadPriced(gate, width=3)) as there:
        there.arrive("r1", "left 1", "right 1")
        await there.until(lambda: all("price" in row for row in there.view["candidates"]) and there.states())
        return there.view


async def test_what_is_told_decides_alike(tmp_path: Path) -> None:
    branch = await told(tmp_path, Gate())
    snapshot = snapshot_of(branch, prior_curves())
    assert snapshot is not None and len(snapshot.candidates) == 2
    assert snapshot_from(snapshot_json(snapshot)) == snapshot
    admitted = {row["selection"] for row in branch["candidates"] if row["admitted"]}
    assert {one.selection for one in repriced(snapshot) if one.admitted} == admitted


def branch_of(**changed: float) -> dict[str, Any]:
    load = {"rho_h": 0.5, "rho": 0.5, "o_kv": 0.0, "backlog": 0.0, "slots": 4.0, "fill_slots": 2.0}
    held = {"slot_s": 2.0, "kv_share": 0.0, "kv_share_s": 0.0}
    worth = {"probability": 0.9, "gain_ms": 4000.0, "cost_ms": 3600.0}
    rows = [
        {"selection": selection, "price": {**load, **held, **worth, "o_fill": o_fill, **changed}}
        for selection, o_fill in (("b", 0.5), ("a", 0.0))
    ]
    return {"candidates": [*rows, {"selection": "c", "reason": "no engine can run it"}]}


def test_the_first_view_is_the_emptiest() -> None:
    snapshot = snapshot_of(branch_of(), STEEP)
    assert snapshot is not None and [one.selection for one in snapshot.candidates] == ["b", "a"]
    assert [view.o_fill for view in snapshot.views.values()] == [0.0]


def test_branches_without_prices_and_with_others_are_told_apart() -> None:
    assert snapshot_of({"candidates": [{"selection": "c"}]}, STEEP) is None
    assert snapshot_of({"candidates": []}, STEEP) is None
    with pytest.raises(OtherPrices, match=r"3600\.0 ms were told"):
        snapshot_of(branch_of(), prior_curves())


def test_the_command_says_who_does_not_answer(tmp_path: Path) -> None:
    runner = CliRunner()
    for place in (("--gateway", "http://127.0.0.1:9"), ("--controller", "127.0.0.1:9")):
        found = runner.invoke(app, ["export", "admissions", "-o", str(tmp_path / "a.jsonl"), *place])
        assert found.exit_code == 1 and "answer" in found.output
    assert not list(tmp_path.iterdir())
    curve = tmp_path / "curve.json"
    curve.write_text('{"version": 9}')
    found = runner.invoke(app, ["export", "admissions", "--price-curve", str(curve)])
    assert found.exit_code == 1 and "is no curve file" in found.output
