"""Snapshots of admission as the gates come upon them: in the workflows of the two-level ablation, on four
simulated engines, every candidate with all engines that it could have run at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynbranch.bench.admission_snapshots import Snapshot
from dynbranch.bench.two_level import LOW, PRESET, WIDTH
from dynbranch.bench.two_level_traffic import Traffic, questions
from dynbranch.bench.two_level_world import World
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.pricing.gate import Gate, Offer
from dynbranch.controller.core.pricing.load import Reading, View
from dynbranch.controller.core.pricing.ordering import Priceable
from dynbranch.controller.core.pricing.returns import ClassKey
from dynbranch.domain.ids import Instant
from dynbranch.enginemodel.parameters import BatchParameters, preset

KNEE: Final = 2.2
"""A second: where ``two_level`` found throughput over latency to be largest."""

LOADS: Final = (LOW * KNEE, KNEE)


class NotingGate(Gate):
    """Keeps what it decided on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.snapshots: list[Snapshot] = []

    def weigh(
        self,
        key: ClassKey,
        offers: Sequence[Offer],
        readings: Sequence[Reading],
        *,
        elapsed_ms: float,
        now: Instant,
    ) -> tuple[list[Priceable], dict[str, View]]:
        found = super().weigh(key, offers, readings, elapsed_ms=elapsed_ms, now=now)
        self.snapshots.append(Snapshot(tuple(found[0]), found[1], self.curves))
        return found


def simulated(rate: float, *, seed: int, count: int) -> list[Snapshot]:
    """Of ``count`` workflows that begin at ``rate`` a second."""
    parameters, traffic = preset(PRESET), Traffic()
    assert isinstance(parameters, BatchParameters)
    gate = NotingGate(seed)
    World(LoadPriced(gate, width=WIDTH), parameters, traffic).run(
        questions(traffic, rate=rate, count=count, seed=seed)
    )
    return gate.snapshots
