"""Which workflows the store has seen arrive, as far as this gateway knows."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

from dynbranch.domain.reuse import Identity, ReadScope

MAX_REMEMBERED = 50_000

Workflow = tuple[str, str]
"""Tenant and workflow id."""


class Arrived(Enum):
    """REGISTERED: the store was told. UNKNOWN: it could not be told when the workflow first arrived, so what
    it says later may be too late."""

    REGISTERED = "registered"
    UNKNOWN = "unknown"


class FirstArrivals:
    """Two bounded memories, least recently used first to go. Workflows that arrived in an outage are kept
    apart: no number of others may push them out."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._memories: dict[Arrived, OrderedDict[Workflow, None]] = {
            arrived: OrderedDict() for arrived in Arrived
        }

    def of(self, workflow: Workflow) -> Arrived | None:
        """None: not heard of, or forgotten."""
        for arrived, memory in self._memories.items():
            if workflow in memory:
                memory.move_to_end(workflow)
                return arrived
        return None

    def remember(self, workflow: Workflow, arrived: Arrived) -> None:
        """Only a workflow that is not remembered: what was learned first stands."""
        assert self.of(workflow) is None
        memory = self._memories[arrived]
        memory[workflow] = None
        if len(memory) > self._limit:
            memory.popitem(last=False)


def workflow_of(identity: Identity) -> Workflow | None:
    return (identity.tenant, identity.workflow_id) if identity.workflow_id else None


def counts_from_first_arrival(scope: ReadScope) -> bool:
    """Whether a read without a version is declared."""
    return any(read.as_of is None for read in scope.declared)
