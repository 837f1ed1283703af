"""The engine agents as fills need them: what each offers, how busy it is, and a client for any of them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from dynbranch.clients.ports import EngineAgent, Unreachable
from dynbranch.controller.core.branches.messages import EngineGone, EngineSeen
from dynbranch.domain.engine import AgentDescription, Occupancy
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import Digest
from dynbranch.naming.pool import Executor, Offer, Pool, choose_pool, models_by_name, tools_by_name
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

MAX_OTHER_AGENTS = 64
_DESCRIBE_TIMEOUT_S = 5.0
_FIRST_BACK_OFF_S = 0.1
_LAST_BACK_OFF_S = 3.0

Hear = Callable[[EngineSeen | EngineGone], None]


@dataclass(slots=True)
class Agent:
    """One configured agent."""

    address: str
    client: EngineAgent
    description: AgentDescription | None = None
    models: dict[str, tuple[Executor, Digest]] = field(default_factory=dict)
    tools: dict[str, tuple[Executor, Digest]] = field(default_factory=dict)
    available: bool = False
    in_flight: int = 0


class Agents:
    """``connect`` makes the client of an address; clients are closed by ``close``. ``hear`` is told how busy
    each engine is, and when one is gone."""

    def __init__(
        self,
        addresses: Iterable[str],
        connect: Callable[[str], EngineAgent],
        *,
        clock: Clock,
        interval_ms: int = 250,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._interval_ms = interval_ms
        self._agents = {address: Agent(address, connect(address)) for address in addresses}
        self._others: OrderedDict[str, EngineAgent] = OrderedDict()

    def start(self, tasks: Tasks, hear: Hear) -> None:
        for agent in self._agents.values():
            tasks.spawn(self._keep(agent, hear), name=f"agent {agent.address}")

    async def close(self) -> None:
        for client in (*(agent.client for agent in self._agents.values()), *self._others.values()):
            await client.close()

    def pool_of_model(self, model: str) -> Pool | None:
        """By the rule of the gateways, so that a fill has the name that its demand will have."""
        return self._pool((agent, agent.models.get(model)) for agent in self._agents.values())

    def pool_of_tool(self, tool: str) -> Pool | None:
        return self._pool((agent, agent.tools.get(tool)) for agent in self._agents.values())

    async def client(self, address: str) -> EngineAgent:
        """Of any address, configured or told by the store. Least recently used others are closed."""
        agent = self._agents.get(address)
        if agent is not None:
            return agent.client
        client = self._others.pop(address, None) or self._connect(address)
        self._others[address] = client
        if len(self._others) > MAX_OTHER_AGENTS:
            _, unused = self._others.popitem(last=False)
            await unused.close()
        return client

    @staticmethod
    def _pool(offered: Iterable[tuple[Agent, tuple[Executor, Digest] | None]]) -> Pool | None:
        offers = [
            Offer(agent.address, *found, agent.available, agent.in_flight)
            for agent, found in offered
            if found is not None
        ]
        pool = choose_pool(offers, undescribed=0)
        return pool if isinstance(pool, Pool) else None

    # -- keeping up ----------------------------------------------------------------------------------------

    async def _keep(self, agent: Agent, hear: Hear) -> None:
        back_off_s = _FIRST_BACK_OFF_S
        while True:
            trouble = "its occupancy stream ended"
            try:
                await self._describe(agent)
                back_off_s = _FIRST_BACK_OFF_S
                reports = agent.client.watch_occupancy(interval_ms=self._interval_ms)
                async with aclosing(reports):
                    async for report in reports:
                        await self._heard(agent, report, hear)
            except (Unreachable, DomainError) as failure:
                trouble = str(failure)
            if agent.available:
                _log.warning("agent %s is lost: %s", agent.address, trouble)
            self._lose(agent, hear)
            await self._clock.sleep(back_off_s)
            back_off_s = min(_LAST_BACK_OFF_S, 2 * back_off_s)

    async def _describe(self, agent: Agent) -> None:
        described = await agent.client.describe(timeout_s=_DESCRIBE_TIMEOUT_S)
        agent.models = models_by_name(described)
        agent.tools = tools_by_name(described)
        agent.description = described

    async def _heard(self, agent: Agent, report: Occupancy, hear: Hear) -> None:
        described = agent.description
        if described is None or report.revision != described.revision or report.ready != described.ready:
            await self._describe(agent)
        if not report.ready:
            self._lose(agent, hear)
            return
        agent.available = True
        engine_running = report.running if report.engine_running is None else report.engine_running
        engine_waiting = report.waiting if report.engine_waiting is None else report.engine_waiting
        running, waiting = max(report.running, engine_running), max(report.waiting, engine_waiting)
        agent.in_flight = running + waiting
        hear(
            EngineSeen(
                address=agent.address,
                slots=report.slots,
                running=running,
                waiting=waiting,
                fills=report.fills,
                serves_models=bool(agent.models),
                fill_slots=report.fill_slots,
                fill_tokens=report.fill_kv_tokens,
            )
        )

    @staticmethod
    def _lose(agent: Agent, hear: Hear) -> None:
        if agent.available:
            agent.available = False
            hear(EngineGone(agent.address))
