"""The tables draw the diagrams of the documentation, and nothing moves off them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dynbranch.controller.core.branches.lifecycle import (
    BRANCH,
    FILL,
    BranchMove,
    BranchState,
    FillState,
    IllegalMove,
    diagrams,
    moved,
)

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "branches.md"


@pytest.mark.parametrize("name", ["branch", "fill", "entry"])
def test_the_documentation_shows_the_table(name: str) -> None:
    shown = re.search(rf"<!-- {name} -->\n```mermaid\n(.*?)\n```", DOCUMENT.read_text(), re.DOTALL)
    assert shown is not None and shown[1] == diagrams()[name]


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    with pytest.raises(IllegalMove, match="settled can not take"):
        moved(BRANCH, BranchState.SETTLED, BranchMove.RESOLVE)


def test_every_state_is_reached() -> None:
    assert {*BRANCH.values(), BranchState.OPENING} == set(BranchState)
    assert {*FILL.values(), FillState.ADMITTED} == set(FillState)
