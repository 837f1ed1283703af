"""Cores with one planted bug each. The simulation must find every one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dynbranch.csl.core import commit, graph
from dynbranch.csl.core.leases import LeaseTable
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.memory import Memory
from dynbranch.csl.core.rows import DerivationRow
from dynbranch.csl.core.store import Batch
from dynbranch.domain.engine import Completed
from dynbranch.domain.reuse import Refused
from dynbranch.engine_agent.core.registry import Registry
from dynbranch.gateway.core import life
from dynbranch.gateway.core.life import RequestLife
from dynbranch.sim.cores import Cores


class WritesLeaveLeasesOpen(Library):
    """A write closes no lease: executions that read an older version are followed and committed."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.memory.leases.close_written = lambda records: 0  # type: ignore[method-assign]


class _Sticky(LeaseTable):
    def _unjoin(self, row: Any) -> None:
        if not row.closed_by:
            super()._unjoin(row)

    def joinable(self, name: Any, exclude: Any) -> Any:
        lease_id = self._joinable.get(name)
        row = self._rows.get(lease_id) if lease_id is not None else None
        return None if row is None or row.lease.generation.generation_id in exclude else row

    def violations(self) -> Any:
        return iter(())


class FollowersAfterTheWrite(Library):
    """A closed lease commits nothing, but still takes followers."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.memory.leases = _Sticky(max_leases=self.limits.max_leases)


class WritesAnsweredBeforeDurable(Library):
    def finish_plan(self, view: Any, index: Any) -> Any:
        return replace(super().finish_plan(view, index), durable=False)


class _NoReadToken(Memory):
    def judge(self, event: Any, row: Any, view: Any, meta: Any) -> Any:
        if row is None:
            return super().judge(event, row, view, replace(meta, floor=meta.version))
        reads = commit.reads_of(event, row.lease, self.limits)
        return reads if isinstance(reads, Refused) else DerivationRow(row.lease.read_token, reads, ())


class NoReadTokenCheck(Library):
    """A commit is judged by its lease alone."""

    memory_class = _NoReadToken


class _NotTold(Memory):
    def put_derivation(self, transaction: Any, node: Any, derivation: Any) -> None:
        graph.put_derivation(transaction, node, derivation)


class CommitsNotToldToThePlan(Library):
    """What is committed while a write is planned escapes it."""

    memory_class = _NotTold


class _AsCallersName(Memory):
    def new_generation(self, intended: Any) -> Any:
        return intended


class GenerationsNamedByCallers(Library):
    """A late copy of a demand is granted the generation that ran long ago."""

    memory_class = _AsCallersName


class _Forgetful(Memory):
    def is_live(self, view: Any, incarnation: Any) -> bool:
        return True


class ProducersForgotten(Library):
    """Nobody looks whether what an execution was built from still stands."""

    memory_class = _Forgetful


class FirstArrivalsInMemory(Library):
    """A workflow's first arrival is answered before it is durable; a power loss makes it arrive again."""

    def demand(self, event: Any, view: Any, now: Any) -> Any:
        return replace(super().demand(event, view, now), durable=False)


class SlotsLeak(Registry):
    """An aborted generation keeps its slot."""

    def _engine_let_go(self, generation_id: Any, now: Any) -> Any:
        width = self.slots.held[generation_id]
        effects = super()._engine_let_go(generation_id, now)
        self.slots.held[generation_id] = width
        return effects

    def validate_state(self) -> None:
        """Says nothing: the end of the run must tell."""


class HalfAnswers(RequestLife):
    """A stream that breaks passes for one that ended."""

    def handle(self, event: Any) -> Any:
        if isinstance(event, life.Lost) and self.state is life.State.SHOWING:
            self.state = life.State.SERVED
            return (life.Finish(Completed("committed", 0.0)),)
        return super().handle(event)


MUTANTS = {
    "writes leave leases open": (Cores(library=WritesLeaveLeasesOpen), {"I3", "C1.cascade"}),
    "followers after the write": (Cores(library=FollowersAfterTheWrite), {"I3"}),
    "writes answered before durable": (Cores(library=WritesAnsweredBeforeDurable), {"I3", "C1.cascade"}),
    "no read token check": (Cores(library=NoReadTokenCheck), {"I3", "C1.cascade"}),
    "commits not told to the plan": (Cores(library=CommitsNotToldToThePlan), {"I3", "C1.cascade"}),
    "generations named by callers": (Cores(library=GenerationsNamedByCallers), {"I3", "C1.single_flight"}),
    "first arrivals in memory": (Cores(library=FirstArrivalsInMemory), {"I3"}),
    "producers forgotten": (Cores(library=ProducersForgotten), {"I3", "C1.cascade"}),
    "no gap at opening": (Cores(open_store=lambda view: Batch()), {"I3", "C1.cascade", "I4"}),
    "slots leak": (Cores(registry=SlotsLeak), {"I4", "I5"}),
    "half answers": (Cores(life=HalfAnswers), {"I1"}),
}
