"""The life of a generation: one table states every move; what is not in it raises ``IllegalMove``.

A slot is held in RUNNING and ABORTING, a place in the queue in ADMITTED. A lease is held from the order until
it is settled, by a commit or a release, exactly once (invariant I4); ``core/ledger.py`` holds that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    ADMITTED = "admitted"
    RUNNING = "running"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


class Move(Enum):
    """Why a generation changes its state. The values label the arrows of the diagram."""

    START = "slot free"
    FINISH = "clean end, result to store"
    FINISH_UNSTORED = "clean end, nothing to store"
    SETTLE = "commit answered"
    HURRY = "commit budget spent"
    FAIL = "engine failed"
    ABORT = "aborted, or nobody attached"
    LET_GO = "engine freed the slot"


class IllegalMove(AssertionError):
    """A bug: this move does not exist in this state."""


TRANSITIONS: Mapping[tuple[State, Move], State] = {
    (State.ADMITTED, Move.START): State.RUNNING,
    (State.ADMITTED, Move.FAIL): State.FAILED,
    (State.ADMITTED, Move.ABORT): State.ABORTED,
    (State.RUNNING, Move.FINISH): State.COMMITTING,
    (State.RUNNING, Move.FINISH_UNSTORED): State.COMPLETED,
    (State.RUNNING, Move.FAIL): State.FAILED,
    (State.RUNNING, Move.ABORT): State.ABORTING,
    (State.COMMITTING, Move.SETTLE): State.COMPLETED,
    (State.COMMITTING, Move.HURRY): State.COMPLETED,
    (State.ABORTING, Move.LET_GO): State.ABORTED,
}

TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.ABORTED})
HOLDS_SLOT = frozenset({State.RUNNING, State.ABORTING})


def moved(state: State, move: Move) -> State:
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise IllegalMove(f"a generation that is {state.value} can not take: {move.value}") from None


def diagram() -> str:
    """The table as mermaid text. README shows exactly this; a test compares them."""
    lines = ["stateDiagram-v2", "    [*] --> admitted: order accepted"]
    lines += [
        f"    {before.value} --> {after.value}: {move.value}" for (before, move), after in TRANSITIONS.items()
    ]
    lines += [f"    {state.value} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)
