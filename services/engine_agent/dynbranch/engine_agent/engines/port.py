"""What the agent needs of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dynbranch.domain.engine import (
    AgentKind,
    Failed,
    GenerationOrder,
    ModelDescription,
    ToolDescription,
    WorkClass,
)
from dynbranch.domain.ids import RecordId


class EngineUnavailable(Exception):
    """The engine does not start, does not answer, or is not what it was. The message is for people."""


class EngineError(Exception):
    """One generation failed. Carries what its followers are told."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.body[:200].decode("utf-8", "replace"))
        self.failure = failure


@dataclass(frozen=True, slots=True)
class BodyFields:
    """What an engine is told in a request's body, beside what the harness asked for.

    ``priorities`` is empty where the engine has none. ``salt_field`` and ``id_field`` name fields of the
    body; empty: the engine has no such field. ``defaults`` are the engine's own sampling defaults by model
    id and field, as JSON numbers: sent where a request is silent, so that what the fingerprint says happens.
    """

    priorities: Mapping[WorkClass, int] = field(default_factory=dict)
    salt_field: str = ""
    id_field: str = ""
    defaults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the start-up probe found."""

    slots: int
    bypass_url: str
    models: tuple[ModelDescription, ...] = ()
    tools: tuple[ToolDescription, ...] = ()
    fields: BodyFields = field(default_factory=BodyFields)


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """The engine's own numbers; None where it has none."""

    running: int | None = None
    waiting: int | None = None
    kv_used_share: float | None = None


Items = tuple[bytes, ...]
"""Items of a generation's log, in their order."""


Heard = Callable[[Items], None]
"""Told of items the moment that they come."""


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """How a good run ends. ``unstorable``: why its result may not be stored."""

    unstorable: str = ""
    reads: tuple[RecordId, ...] | None = None


class Engine(Protocol):
    @property
    def kind(self) -> AgentKind: ...

    async def start(self) -> EngineFacts:
        """Start the engine if it is ours, wait for it, probe it. Raises EngineUnavailable.

        Called again after the engine was lost.
        """

    async def lost(self) -> str:
        """Returns, with the reason, when the engine has died or stopped answering."""

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        """Returns at a clean end, after ``heard`` got all items. Raises EngineError.

        Cancelling it makes the engine stop. ``heard`` is called from wherever the items come, without the
        turn of a task for each of them, and does not wait.
        """

    async def unchanged(self) -> bool:
        """Whether the executor is still the one that ``start`` probed. Asked before a result is stored."""

    async def counts(self) -> EngineCounts:
        """The engine's own occupancy. Raises EngineUnavailable."""

    async def restart(self) -> None:
        """End the engine if it is ours, so that ``lost`` returns and it is started anew."""

    async def close(self) -> None: ...
