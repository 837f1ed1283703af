"""Loads, curves and branches for tests of pricing."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.gate import FillEnd, Gate, Offer, Opening
from dynbranch.controller.core.pricing.load import Reading, View
from dynbranch.controller.core.pricing.ordering import Priced
from dynbranch.controller.core.pricing.prices import Footprint
from dynbranch.controller.core.pricing.returns import ClassKey
from dynbranch.controller.core.pricing.trials import StageUse
from dynbranch.domain.ids import BranchId, FillId, Instant, TrialId
from hypothesis import strategies as st

KEY: ClassKey = ("routing", "way", "t")
SLOTS = 8

shares = st.floats(0.0, 2.0)
views = st.builds(
    View,
    rho_h=shares,
    rho=shares,
    o_fill=st.floats(0.0, 1.0),
    o_kv=st.floats(0.0, 1.0),
    backlog=shares,
    slots=st.integers(1, 48),
    fill_slots=st.integers(1, 24),
)
footprints = st.builds(
    Footprint, slot_s=st.floats(0.0, 20.0), kv_share=st.floats(0.0, 0.5), kv_share_s=st.floats(0.0, 10.0)
)


def reading(rho: float = 0.25, *, fills: int = 0, engine: str = "e1", waiting: int = 0) -> Reading:
    return Reading(engine, SLOTS, round(rho * SLOTS), waiting, fills, SLOTS)


@dataclass
class Town:
    """A gate and what its branches come to, one after another."""

    gate: Gate = field(default_factory=Gate)
    now: float = 0.0
    number: int = 0
    setup_ms: float = 2.0
    rho: float = 0.25
    opened: list[Opening] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(7))

    def branch(
        self, right: bool, *, saved_ms: float = 900.0, width: int = 2, key: ClassKey = KEY
    ) -> tuple[Opening, tuple[Priced, ...]]:
        """``right``: the first of the ranking is selected, and its fill is used."""
        self.now += 1.0
        self.number += 1
        now, seen = Instant(self.now), [reading(self.rho)]
        branch_id = BranchId(self.number.to_bytes(16, "big"))
        trial_id = TrialId(b"t%015d" % self.number)
        self.gate.see(seen[0], now)
        self.gate.pass_time(now)
        opening = self.gate.open(branch_id, trial_id, key, seen, now)
        self.opened.append(opening)
        decided: tuple[Priced, ...] = ()
        if opening.opens:
            self.gate.charge_setup(trial_id, self.setup_ms)
            offers = [
                Offer(f"s{rank}", rank, FillId(branch_id + bytes([rank])), "routing", ("work",), ("e1",))
                for rank in range(width)
            ]
            decided = self.gate.admit(
                branch_id, trial_id, key, offers, seen, elapsed_ms=5.0, room=width, now=now
            )
            self.gate.select(key, [(rank, right and rank == 0) for rank in range(width)])
            self.gate.resolve(trial_id, now, window_ms=4000.0)
            for priced in decided:
                if priced.admitted:
                    self._end(trial_id, offers[int(priced.selection[1:])], right, saved_ms)
        self.gate.validate_state()
        return opening, decided

    def _end(self, trial_id: TrialId, offer: Offer, right: bool, saved_ms: float) -> None:
        won = right and offer.rank == 0
        if won:
            self.gate.consume(trial_id, offer.fill_id, 0, saved_ms)
        uses = (StageUse("work", 1000.0),)
        end = FillEnd(trial_id, offer.fill_id, "routing", uses, won, won, saved_ms if won else 0.0)
        self.gate.end_fill(end)

    def opens(self, branches: int) -> list[Opening]:
        return self.opened[-branches:]


def constants(**changed: float) -> Constants:
    return Constants(**changed)  # type: ignore[arg-type]
