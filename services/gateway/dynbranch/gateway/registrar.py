"""The first arrival of every workflow reaches the store before anything of that workflow executes.

A read that is declared without a version counts from there. A demand registers its workflow by itself; an
arrival that demands nothing is registered by a demand that may neither hit nor execute.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace

from dynbranch.domain.ids import DemandId, GenerationId, Name
from dynbranch.domain.reuse import PURE, Demand, GenerationRef, Identity
from dynbranch.gateway.core.first_arrivals import (
    Arrived,
    FirstArrivals,
    Workflow,
    counts_from_first_arrival,
    workflow_of,
)
from dynbranch.gateway.core.life import Answered, Unanswered
from dynbranch.gateway.csl_gate import CslGate


class Registrar:
    """Stands before the gate to the store. ``new_id`` is the source of chance."""

    def __init__(self, gate: CslGate, *, new_id: Callable[[], bytes]) -> None:
        self._gate = gate
        self._new_id = new_id
        self._known = FirstArrivals()
        self._under_way: dict[Workflow, asyncio.Future[Arrived]] = {}

    async def register(self, identity: Identity) -> None:
        """Returns when the store knows the workflow, or can not be told within its budget."""
        workflow = workflow_of(identity)
        if workflow is None or self._known.of(workflow) is not None:
            return
        under_way = self._under_way.get(workflow)
        if under_way is None:
            await self._first(workflow, self._nothing_but_an_arrival(identity))
        else:
            await asyncio.wait((under_way,))

    async def demand(self, demand: Demand) -> Answered | Unanswered:
        workflow = workflow_of(demand.identity)
        if workflow is None:
            return await self._gate.demand(demand)
        arrived, under_way = self._known.of(workflow), self._under_way.get(workflow)
        if arrived is None and under_way is None:
            return await self._first(workflow, demand)
        if counts_from_first_arrival(demand.scope):
            if arrived is None and under_way is not None:
                await asyncio.wait((under_way,))
                arrived = under_way.result()
                if arrived is Arrived.UNKNOWN:
                    # The store has just had its budget.
                    return Unanswered("the workflow's first arrival is not known to the store")
            if arrived is Arrived.UNKNOWN:
                demand = replace(demand, may_execute=False)
        return await self._gate.demand(demand)

    async def _first(self, workflow: Workflow, demand: Demand) -> Answered | Unanswered:
        told: asyncio.Future[Arrived] = asyncio.get_running_loop().create_future()
        self._under_way[workflow] = told
        arrived = Arrived.UNKNOWN
        try:
            answer = await self._gate.demand(demand)
            if isinstance(answer, Answered):
                arrived = Arrived.REGISTERED
            return answer
        finally:
            del self._under_way[workflow]
            self._known.remember(workflow, arrived)
            told.set_result(arrived)

    def _nothing_but_an_arrival(self, identity: Identity) -> Demand:
        return Demand(
            demand_id=DemandId(self._new_id()),
            name=Name(hashlib.sha256(b"an arrival that demands nothing").digest()),
            identity=identity,
            scope=PURE,
            intended=GenerationRef(GenerationId(self._new_id()), ""),
            may_execute=False,
            may_hit=False,
        )
