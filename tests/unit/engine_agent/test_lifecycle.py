from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from dynbranch.engine_agent.core.lifecycle import (
    TERMINAL,
    TRANSITIONS,
    IllegalMove,
    Move,
    State,
    diagram,
    moved,
)

README = Path(__file__).parents[3] / "services/engine_agent/README.md"


def test_a_pair_that_is_not_in_the_table_is_a_bug() -> None:
    for state, move in product(State, Move):
        if (state, move) in TRANSITIONS:
            assert moved(state, move) is TRANSITIONS[state, move]
        else:
            with pytest.raises(IllegalMove):
                moved(state, move)


def test_terminal_states_are_exactly_those_that_nothing_leaves() -> None:
    assert {state for state, _ in TRANSITIONS}.isdisjoint(TERMINAL)
    assert {state for state, _ in TRANSITIONS} | TERMINAL == set(State)


def test_every_state_can_reach_an_end() -> None:
    ending = set(TERMINAL)
    for _ in State:
        ending |= {before for (before, _), after in TRANSITIONS.items() if after in ending}
    assert ending == set(State)


def test_readme_shows_the_diagram_of_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in README.read_text(encoding="utf-8")
