"""The lives of a branch, of one stage of a fill, and of an entry as a controller sees it.

Each table states every move; what is not in it raises ``IllegalMove``. The diagrams in docs/branches.md are
printed from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class IllegalMove(AssertionError):
    """A bug: this move does not exist in this state."""


class _Quick(Enum):
    """Looked up in tables all the time: by identity, not by name."""

    __hash__ = object.__hash__


class BranchState(_Quick):
    OPENING = "opening"
    OPEN = "open"
    RESOLVED = "resolved"
    AMBIGUOUS = "ambiguous"
    EXPIRED = "expired"
    SETTLED = "settled"


class BranchMove(_Quick):
    """The values label the arrows of the diagram."""

    PROPOSE = "candidates proposed"
    RESOLVE = "selection told"
    BLUR = "selection can not be told"
    EXPIRE = "time is over, or the workflow is gone"
    SETTLE = "every fill is settled"


BRANCH: Mapping[tuple[BranchState, BranchMove], BranchState] = {
    (BranchState.OPENING, BranchMove.PROPOSE): BranchState.OPEN,
    (BranchState.OPENING, BranchMove.RESOLVE): BranchState.RESOLVED,
    (BranchState.OPENING, BranchMove.BLUR): BranchState.AMBIGUOUS,
    (BranchState.OPENING, BranchMove.EXPIRE): BranchState.EXPIRED,
    (BranchState.OPEN, BranchMove.RESOLVE): BranchState.RESOLVED,
    (BranchState.OPEN, BranchMove.BLUR): BranchState.AMBIGUOUS,
    (BranchState.OPEN, BranchMove.EXPIRE): BranchState.EXPIRED,
    (BranchState.RESOLVED, BranchMove.SETTLE): BranchState.SETTLED,
    (BranchState.AMBIGUOUS, BranchMove.SETTLE): BranchState.SETTLED,
    (BranchState.EXPIRED, BranchMove.SETTLE): BranchState.SETTLED,
}

UNRESOLVED = frozenset({BranchState.OPENING, BranchState.OPEN})


class FillState(_Quick):
    """Of one stage of a fill: each stage is a shadow of its own. PASSED: its result stood already, or came
    from an execution that was under way already, and the chain went on from it."""

    ADMITTED = "admitted"
    RUNNING = "running"
    SHADOW = "shadow"
    ADOPTED = "adopted"
    PROMOTED = "promoted"
    CONFIRMED = "confirmed"
    SERVED_ONLY = "served-only"
    FAILED = "failed"
    DISCARDED = "discarded"
    ABORTED = "aborted"
    REFUSED = "refused"
    PASSED = "passed"


class FillMove(_Quick):
    BEGIN = "leave granted"
    REFUSE = "refused at dispatch"
    PASS = "stood or ran already"
    FINISH = "stored as a shadow"
    ADOPT = "taken over by a demand"
    PROMOTE = "demanded"
    CONFIRM = "stored as an entry"
    SERVE = "served, not stored"
    FAIL = "engine failed"
    ABORT = "lost, stale, failed or cancelled"
    DISCARD = "lost, stale, expired or evicted"


FILL: Mapping[tuple[FillState, FillMove], FillState] = {
    (FillState.ADMITTED, FillMove.BEGIN): FillState.RUNNING,
    (FillState.ADMITTED, FillMove.REFUSE): FillState.REFUSED,
    (FillState.ADMITTED, FillMove.PASS): FillState.PASSED,
    (FillState.ADMITTED, FillMove.ABORT): FillState.ABORTED,
    # The leave is there, and the engine's agent has no room: its own limits are the hard ones.
    (FillState.RUNNING, FillMove.REFUSE): FillState.REFUSED,
    (FillState.RUNNING, FillMove.FINISH): FillState.SHADOW,
    (FillState.RUNNING, FillMove.ADOPT): FillState.ADOPTED,
    (FillState.RUNNING, FillMove.ABORT): FillState.ABORTED,
    (FillState.SHADOW, FillMove.PROMOTE): FillState.PROMOTED,
    (FillState.SHADOW, FillMove.DISCARD): FillState.DISCARDED,
    (FillState.ADOPTED, FillMove.CONFIRM): FillState.CONFIRMED,
    (FillState.ADOPTED, FillMove.SERVE): FillState.SERVED_ONLY,
    (FillState.ADOPTED, FillMove.FAIL): FillState.FAILED,
}

FILL_ENDS = frozenset(state for state in FillState if state not in {before for before, _ in FILL})
USED = frozenset({FillState.ADOPTED, FillState.PROMOTED, FillState.CONFIRMED, FillState.SERVED_ONLY})
"""A demand took it."""


class EntryState(Enum):
    CONFIRMED = "confirmed"
    INVALIDATED = "invalidated"
    EVICTED = "evicted"
    EXPIRED = "expired"


class EntryMove(Enum):
    WRITE = "a write took its last derivation"
    EVICT = "room was needed"
    EXPIRE = "its time is over"


ENTRY: Mapping[tuple[EntryState, EntryMove], EntryState] = {
    (EntryState.CONFIRMED, EntryMove.WRITE): EntryState.INVALIDATED,
    (EntryState.CONFIRMED, EntryMove.EVICT): EntryState.EVICTED,
    (EntryState.CONFIRMED, EntryMove.EXPIRE): EntryState.EXPIRED,
}

S = TypeVar("S", bound=Enum)
M = TypeVar("M", bound=Enum)


def moved(table: Mapping[tuple[S, M], S], state: S, move: M) -> S:
    try:
        return table[state, move]
    except KeyError:
        raise IllegalMove(f"what is {state.value} can not take: {move.value}") from None


def diagram(table: Mapping[tuple[S, M], S], first: S) -> str:
    """The table as mermaid text. Several moves between two states share an arrow."""
    arrows: dict[tuple[S, S], list[str]] = {}
    for (before, move), after in table.items():
        arrows.setdefault((before, after), []).append(move.value)
    names = {state: state.value.replace("-", "_") for pair in arrows for state in pair}
    ends = [state for state in names if not any(before is state for before, _ in arrows)]
    lines = ["stateDiagram-v2", f"    [*] --> {names[first]}"]
    lines += [f"    {names[a]} --> {names[b]}: {' / '.join(moves)}" for (a, b), moves in arrows.items()]
    lines += [f"    {names[state]} --> [*]" for state in ends]
    return "\n".join(lines)


def diagrams() -> Mapping[str, str]:
    """By the heading under which docs/branches.md shows each."""
    return {
        "branch": diagram(BRANCH, BranchState.OPENING),
        "fill": diagram(FILL, FillState.ADMITTED),
        "entry": diagram(ENTRY, EntryState.CONFIRMED),
    }
