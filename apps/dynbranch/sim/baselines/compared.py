"""What every compared system has of the floor, where its own policy says nothing else."""

from __future__ import annotations

from dynbranch.sim.baselines.spending import Spending
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Floor, Records


class Compared(Floor):
    """An arm that says what it spent."""

    def __init__(self, fleet: Fleet, records: Records) -> None:
        super().__init__(fleet, records)
        self.spending = Spending()
        self.accounts = self.spending.accounts
