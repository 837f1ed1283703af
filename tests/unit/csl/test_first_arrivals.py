"""First arrivals that could not be written, as on a full disk, are not mistaken for later ones."""

from __future__ import annotations

import pytest
from dynbranch.csl.core.events import Moment
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.domain.ids import DemandId, GenerationId, RecordId
from dynbranch.domain.reuse import (
    Commit,
    Committed,
    DeclaredRead,
    Demand,
    GenerationRef,
    Identity,
    Level,
    Miss,
    ReadScope,
    Refusal,
    Refused,
)

DECLARED = ReadScope(declared=(DeclaredRead(RecordId("docs/1")),))


def refused_arrival(library: SteppedLibrary, workflow: str) -> Miss:
    """A demand whose batch does not fit on the disk."""
    ids = workflow.encode().ljust(16)
    demand = Demand(
        DemandId(ids),
        name_of(workflow),
        Identity(workflow_id=workflow),
        DECLARED,
        GenerationRef(GenerationId(ids), "agent:1"),
    )
    now = Moment(library.clock.now(), library.clock.unix_ms())
    decision = library.library.demand(demand, library.store, now)
    assert not decision.batch.empty
    library.library.defer_arrivals(decision.batch)
    assert isinstance(decision.reply, Miss)
    return decision.reply


@pytest.mark.promise("I3")
def test_a_workflow_that_came_before_a_write_stays_before_it() -> None:
    library = SteppedLibrary()
    refused_arrival(library, "w")
    library.write("docs/1")
    outcome = library.commit(library.lease("later", workflow="w", scope=DECLARED))
    assert isinstance(outcome, Refused) and outcome.reason is Refusal.STALE_READ


def test_it_is_known_without_a_write_too_and_written_when_there_is_room() -> None:
    library = SteppedLibrary()
    lease = refused_arrival(library, "w").lease
    assert lease is not None
    assert library.library.stats(library.store).entries == 0
    commit = Commit(lease, b"x", name_of("x"), Level.SOURCED, 1.0)  # type: ignore[arg-type]
    assert isinstance(library.handle(commit), Committed)
    library.demand("other", workflow="w")
    library.restart()
    library.write("docs/1")
    outcome = library.commit(library.lease("later", workflow="w", scope=DECLARED))
    assert isinstance(outcome, Refused) and outcome.reason is Refusal.STALE_READ


def test_beyond_the_bound_no_new_workflow_has_a_known_first_arrival() -> None:
    library = SteppedLibrary(limits=Limits(max_deferred_arrivals=1))
    for workflow in ("v", "w"):
        refused_arrival(library, workflow)
    library.write("docs/2")
    outcome = library.commit(library.lease("later", workflow="w", scope=DECLARED))
    assert isinstance(outcome, Refused) and outcome.reason is Refusal.UNKNOWN_FIRST_ARRIVAL
