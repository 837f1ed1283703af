"""Cores of a branch with one planted bug each. Trying every interleaving must find every one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.filling import Filling
from dynbranch.controller.core.branches.instances import OpenBranches
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.memory import Memory
from dynbranch.csl.core.planning import Planning
from dynbranch.csl.core.shadows import Shadows
from dynbranch.csl.core.store import Batch
from dynbranch.domain.fills import DiscardResult
from dynbranch.sim.branch_cast import BranchCores


class _NeverLost(Shadows):
    def get(self, name: Any) -> Any:
        row = super().get(name)
        return None if row is None else replace(row, lost=False)


class _LostMayServe(Memory):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.shadows = _NeverLost()


class LostShadowsArePromoted(Library):
    """A demand does not look whether the shadow that it finds was lost."""

    memory_class = _LostMayServe


class DiscardsAreIgnored(Library):
    """The store says yes to a discard, and leaves all as it was."""

    def discard_fills(self, event: Any, view: Any, now: Any) -> Any:
        return replace(super().discard_fills(replace(event, fill_ids=()), view, now), reply=DiscardResult())


class _Forgetful(Memory):
    def bury(self, fill: Any) -> None:
        pass


class DiscardsAreForgotten(Library):
    """A fill that begins after its discard begins."""

    memory_class = _Forgetful


class DrawsAreKept(Library):
    """What a sampled fill gave serves one request, and then the next."""

    def demand(self, event: Any, view: Any, now: Any) -> Any:
        decision = super().demand(event, view, now)
        if not event.once or decision.batch.empty:
            return decision
        self.memory.shadows.reread(view)
        return replace(decision, batch=Batch())


class WritesSpareFills(Library):
    """A write tells no running execution that what it may have read has changed."""

    def finish_plan(self, view: Any, index: Any) -> Any:
        self.memory.leases._by_source.clear()
        return super().finish_plan(view, index)

    def violations(self, view: Any) -> Any:
        return iter(())


class _Deaf(Planning):
    def committed(self, node: Any, derivation: Any) -> None:
        pass


class PlansHearNoCommits(Library):
    """What is committed while a write looks for what it fells is not told to it."""

    def begin_write(self, event: Any, view: Any, now: Any) -> None:
        super().begin_write(event, view, now)
        assert self.memory.planning is not None
        self.memory.planning.__class__ = _Deaf


class _CountsTwice(Filling):
    def settle(self, settlement: Any, now: Any, out: Any) -> Any:
        self._seen.clear()
        return super().settle(settlement, now, out)


class _KeepsReservations(Filling):
    def ended(self, event: Any, now: Any, out: Any) -> Any:
        self.reservations.release = lambda key: None  # type: ignore[method-assign]
        try:
            return super().ended(event, now, out)
        finally:
            del self.reservations.release


class _Rebuilt(BranchBook):
    filling_class: type[Filling] = Filling

    def __init__(self, admission: Any, *, bounds: Any = None, quota: Any = None) -> None:
        super().__init__(admission, bounds=bounds, quota=quota)
        self.filling = self.filling_class(quota or Quota())
        self.branches = OpenBranches(admission, self.filling, self.bounds)


class SettlementsCountTwice(_Rebuilt):
    """A settlement that comes again is taken for a new one."""

    filling_class = _CountsTwice


class ReservationsAreKept(_Rebuilt):
    """What a stage held of an engine is not given back."""

    filling_class = _KeepsReservations


BRANCH_MUTANTS = {
    "lost shadows are promoted": (BranchCores(library=LostShadowsArePromoted), {"I2"}),
    "discards are ignored": (BranchCores(library=DiscardsAreIgnored), {"I2", "I4"}),
    "discards are forgotten": (BranchCores(library=DiscardsAreForgotten), {"I2"}),
    "draws are kept": (BranchCores(library=DrawsAreKept), {"C2.once"}),
    "writes spare fills": (BranchCores(library=WritesSpareFills), {"I3"}),
    "plans hear no commits": (BranchCores(library=PlansHearNoCommits), {"I3", "store"}),
    "settlements count twice": (BranchCores(book=SettlementsCountTwice), {"I4"}),
    "reservations are kept": (BranchCores(book=ReservationsAreKept), {"I4", "core"}),
}
