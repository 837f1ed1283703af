"""The engine agents: what each offers, whether it is ready, how busy it is.

Each configured agent is described, its occupancy watched, and described anew when its revision changes or
it comes back. An address that is not configured can still be attached to: other gateways may know agents
that this one does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Self

from dynbranch.clients.ports import EngineAgent, Unreachable
from dynbranch.domain.engine import AgentDescription, GenerationEvents, Occupancy
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import Digest, Instant
from dynbranch.gateway.core.engine_load import EngineLoad
from dynbranch.gateway.core.pool import Executor, Offer, Pool
from dynbranch.gateway.core.prompt_prefix import PromptPrefix
from dynbranch.gateway.core.routing import Candidate, Router
from dynbranch.naming.pool import models_by_name, tools_by_name
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

MAX_OTHER_AGENTS = 64
_DESCRIBE_TIMEOUT_S = 5.0
_FIRST_BACK_OFF_S = 0.1
_LAST_BACK_OFF_S = 3.0
_LISTEN_S = 0.25


@dataclass(slots=True)
class Agent:
    """One configured agent. ``reachable`` is what the last message or failure said."""

    address: str
    client: EngineAgent
    heard_at: Instant
    load: EngineLoad
    description: AgentDescription | None = None
    models: dict[str, tuple[Executor, Digest]] = field(default_factory=dict)
    tools: dict[str, tuple[Executor, Digest]] = field(default_factory=dict)
    reachable: bool = False
    ready: bool = False
    trouble: str = "not yet described"
    tried: bool = False
    silent: bool = False
    slots: int = 0
    listening: set[_Listening] = field(default_factory=set)
    """Whoever follows a generation there."""

    @property
    def bypass_url(self) -> str:
        return self.description.bypass_url if self.description else ""

    def is_at(self, url: str) -> bool:
        """Whether a URL is one of its engine's."""
        root = self.bypass_url.rstrip("/").removesuffix("/v1")
        return bool(root) and url.startswith(f"{root}/")

    @property
    def available(self) -> bool:
        return self.reachable and self.ready

    def why_not_available(self) -> str:
        if not self.reachable:
            return self.trouble
        reason = self.description.not_ready_reason if self.description else ""
        return reason or "not ready"


class Directory:
    """``connect`` makes the client of an address; clients are closed by ``close``.

    An agent that was not heard of for ``silence_s`` is lost, and so is whatever runs there: a process may
    stand still with its connections open.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        connect: Callable[[str], EngineAgent],
        *,
        router: Router,
        occupancy_interval_ms: int,
        silence_s: float,
        mute_s: float,
        clock: Clock,
    ) -> None:
        self._router = router
        self._silence_s = silence_s
        self._connect = connect
        self._interval_ms = occupancy_interval_ms
        self._clock = clock
        self._agents = {
            address: Agent(address, connect(address), clock.now(), EngineLoad(mute_s))
            for address in addresses
        }
        self._others: OrderedDict[str, EngineAgent] = OrderedDict()

    def start(self, tasks: Tasks) -> None:
        for agent in self._agents.values():
            tasks.spawn(self._keep(agent), name=f"agent {agent.address}")
        if self._agents:
            tasks.spawn(self._listen(), name="agents heard")

    async def close(self) -> None:
        for client in (*(agent.client for agent in self._agents.values()), *self._others.values()):
            await client.close()

    # -- what there is -------------------------------------------------------------------------------------

    @property
    def agents(self) -> tuple[Agent, ...]:
        return tuple(self._agents.values())

    @property
    def undescribed(self) -> int:
        return sum(agent.description is None for agent in self._agents.values())

    def offers_of_model(self, model: str) -> list[Offer]:
        """``model`` is an id or an alias."""
        return [self._offer(agent, *agent.models[model]) for agent in self.agents if model in agent.models]

    def served_models(self) -> tuple[str, ...]:
        """The ids of all models that agents have described, in order; aliases are left out."""
        described = (agent.description for agent in self.agents if agent.description)
        return tuple(sorted({model.id for description in described for model in description.models}))

    def offers_of_tool(self, tool: str) -> list[Offer]:
        return [self._offer(agent, *agent.tools[tool]) for agent in self.agents if tool in agent.tools]

    def engine_urls(self) -> tuple[str, ...]:
        """Where raw HTTP for a model may go; ready engines first, the least busy of them before others."""
        known = [agent for agent in self.agents if agent.models and agent.description]
        known.sort(key=lambda agent: (not agent.available, agent.load.in_flight))
        urls = (agent.bypass_url for agent in known)
        return tuple(dict.fromkeys(url for url in urls if url))

    @staticmethod
    def _offer(agent: Agent, executor: Executor, fingerprint: Digest) -> Offer:
        url = agent.bypass_url
        return Offer(agent.address, executor, fingerprint, agent.available, agent.load.in_flight, url)

    # -- using them ----------------------------------------------------------------------------------------

    async def client(self, address: str) -> EngineAgent:
        """The client of any address, configured or told by the store. Least recently used others are
        closed."""
        agent = self._agents.get(address)
        if agent is not None:
            return agent.client
        client = self._others.pop(address, None) or self._connect(address)
        self._others[address] = client
        if len(self._others) > MAX_OTHER_AGENTS:
            _, unused = self._others.popitem(last=False)
            await unused.close()
        return client

    def count_mute(self) -> int:
        now = self._clock.now()
        return sum(agent.load.is_mute(now) for agent in self.agents)

    def route(self, pool: Pool, prefix: PromptPrefix, tried: Collection[str]) -> str | None:
        """The member to try next, as things are now. None when all were tried."""
        left = [self._agents[member.address] for member in pool.members if member.address not in tried]
        if len(left) < 2:
            return left[0].address if left else None
        left = [agent for agent in left if agent.available] or left
        now = self._clock.now()
        candidates = [
            Candidate(
                agent.address, agent.load.in_flight, agent.slots, agent.load.waiting, agent.load.is_mute(now)
            )
            for agent in left
        ]
        return self._router.choose(candidates, prefix)

    @contextmanager
    def executing(self, address: str, prefix: PromptPrefix) -> Iterator[None]:
        """Within, one more generation is in flight there, and its prompt is held there from now on."""
        agent = self._agents.get(address)
        if agent is None:
            yield
            return
        self._router.sent(address, prefix)
        agent.load.send(self._clock.now())
        try:
            yield
        finally:
            agent.load.settle(self._clock.now())

    @contextmanager
    def intending(self, address: str) -> Iterator[None]:
        """Within, one more generation may be about to run there."""
        agent = self._agents.get(address)
        if agent is None:
            yield
            return
        agent.load.intended += 1
        try:
            yield
        finally:
            agent.load.intended -= 1

    @contextmanager
    def forwarding(self, url: str) -> Iterator[None]:
        """Within, one more raw request is in flight at the engine of this URL."""
        there = [agent for agent in self.agents if agent.is_at(url)]
        for agent in there:
            agent.load.raw += 1
        try:
            yield
        finally:
            for agent in there:
                agent.load.raw -= 1

    def while_heard(self, address: str, events: AsyncGenerator[GenerationEvents]) -> Heard:
        """The events as long as their agent is heard of."""
        return Heard(events, self._agents.get(address), self._clock)

    def spoke(self, address: str) -> None:
        """It said something of a generation."""
        agent = self._agents.get(address)
        if agent is not None:
            agent.load.speak(self._clock.now())

    def suspect(self, address: str, trouble: str) -> None:
        """A call to it failed: no new work until it is heard of again."""
        agent = self._agents.get(address)
        if agent is not None:
            agent.reachable, agent.trouble, agent.tried = False, trouble, True

    async def _listen(self) -> None:
        while True:
            await self._clock.sleep(_LISTEN_S)
            for agent in self.agents:
                if not agent.silent and self._clock.now() - agent.heard_at > self._silence_s:
                    self._lose(agent)

    def _lose(self, agent: Agent) -> None:
        agent.silent = True
        self.suspect(agent.address, f"silent for {self._silence_s} s")
        for listening in agent.listening:
            listening.give_up()

    def _hear(self, agent: Agent, *, ready: bool) -> None:
        if not ready:
            # Its engine starts, restarts or is dead: what it held may be gone.
            self._router.forget(agent.address)
        agent.reachable, agent.ready, agent.tried = True, ready, True
        agent.heard_at, agent.silent = self._clock.now(), False

    # -- keeping up ----------------------------------------------------------------------------------------

    async def _keep(self, agent: Agent) -> None:
        back_off_s = _FIRST_BACK_OFF_S
        while True:
            try:
                await self._describe(agent)
                back_off_s = _FIRST_BACK_OFF_S
                await self._watch(agent)
                self.suspect(agent.address, "its occupancy stream ended")
            except (Unreachable, DomainError) as failure:
                if agent.reachable:
                    _log.warning("agent %s is lost: %s", agent.address, failure)
                self.suspect(agent.address, f"unreachable: {failure}")
            await self._clock.sleep(back_off_s)
            back_off_s = min(_LAST_BACK_OFF_S, 2 * back_off_s)

    async def _describe(self, agent: Agent) -> None:
        described = await agent.client.describe(timeout_s=_DESCRIBE_TIMEOUT_S)
        agent.models = models_by_name(described)
        agent.tools = tools_by_name(described)
        agent.description = described
        self._hear(agent, ready=described.ready)

    async def _watch(self, agent: Agent) -> None:
        reports = agent.client.watch_occupancy(interval_ms=self._interval_ms)
        # The port promises an iterator; every implementation is a generator, which must be closed.
        async with aclosing(reports):
            async for report in reports:
                await self._heard(agent, report)

    async def _heard(self, agent: Agent, report: Occupancy) -> None:
        described = agent.description
        if described is None or report.revision != described.revision or report.ready != agent.ready:
            await self._describe(agent)
        self._hear(agent, ready=report.ready)
        agent.load.report(report)
        self._router.heard(agent.address, report.prompt_hints)
        agent.slots = report.slots


class Heard:
    """The events of a generation. Raises Unreachable when their agent falls silent. It is closed by
    ``aclose``. No generator, of which one more would cost as much as all of this."""

    def __init__(self, events: AsyncGenerator[GenerationEvents], agent: Agent | None, clock: Clock) -> None:
        self._events = events
        self._agent = agent
        self._clock = clock
        self._listening = _Listening()
        if agent is not None:
            agent.listening.add(self._listening)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationEvents:
        agent = self._agent
        if agent is None:
            return await anext(self._events)
        if agent.silent:
            raise Unreachable("it is silent")
        message = await self._listening.to(self._events)
        if message.items or message.end is not None:
            agent.load.speak(self._clock.now())
        return message

    async def aclose(self) -> None:
        if self._agent is not None:
            self._agent.listening.discard(self._listening)
        await self._events.aclose()


class _Listening:
    """One who follows a generation, and can be told in the middle of waiting that nothing will come."""

    __slots__ = ("_gave_up", "_task", "_waits")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._waits = False
        self._gave_up = False

    def give_up(self) -> None:
        if self._waits and not self._gave_up and self._task is not None:
            self._gave_up = True
            self._task.cancel()

    async def to(self, events: AsyncGenerator[GenerationEvents]) -> GenerationEvents:
        """The next message. Raises Unreachable when given up, StopAsyncIteration at the end."""
        self._task, self._waits = asyncio.current_task(), True
        try:
            return await anext(events)
        except asyncio.CancelledError:
            # As asyncio.timeout does, which costs more than the message: who else cancelled goes first.
            if self._gave_up and self._task is not None and self._task.uncancel() <= 0:
                raise Unreachable("it fell silent") from None
            raise
        finally:
            self._waits = False
