"""Wiring of the controller service."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn

from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.controller.agents import Agents
from dynbranch.controller.branch_metrics import BranchMetrics
from dynbranch.controller.branch_server import branch_service
from dynbranch.controller.branching import Branching
from dynbranch.controller.config import ControllerSettings
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.budgets import Ledger
from dynbranch.controller.core.branches.controls import controlled
from dynbranch.controller.core.journal import Journal
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.prices import PriceCurves, curves_from
from dynbranch.controller.drafting import DraftModel, Drafts
from dynbranch.controller.learned import Learned
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.controller.predicting import Factory, registered
from dynbranch.controller.predictor_metrics import PredictorMetrics
from dynbranch.controller.preparing import Preparer
from dynbranch.controller.running import Runner, Timings
from dynbranch.controller.server import service
from dynbranch.controller.shell import ControllerShell
from dynbranch.controller.templates_in_force import Foretelling, Templates
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import Clock, SystemClock
from dynbranch.runtime.config import ConfigError, load_settings
from dynbranch.runtime.run import Started, run_service
from dynbranch.runtime.server import GrpcServer
from dynbranch.runtime.tasks import Tasks
from prometheus_client import CollectorRegistry

DRAFT = "draft"
"""What templates call the predictor that asks a small model."""


async def main(started: Started) -> None:
    settings = load_settings(ControllerSettings, service="controller")
    clock = SystemClock()
    templates = Templates(_folder(settings), clock)
    await templates.look()
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(Tasks())
        tasks.spawn(templates.keep_reading(), name="templates")
        owners, branching = [tasks], None
        if settings.csl:
            branching = await _branching(settings, templates, clock, started.registry, stack)
            owners.append(branching.tasks)
        metrics = ControllerMetrics(started.registry)
        shell = ControllerShell(Journal(settings.limits()), clock, metrics, branching)
        services = [service(shell), branch_service(templates, branching)]
        server = GrpcServer(settings.listen, services, clock)
        started.ready(await server.start())
        try:
            await started.until_stopped(*owners)
        finally:
            await server.stop(settings.drain_s)


async def _branching(
    settings: ControllerSettings,
    templates: Templates,
    clock: Clock,
    registry: CollectorRegistry,
    stack: AsyncExitStack,
) -> Branching:
    store = GrpcCsl(settings.csl)
    stack.push_async_callback(store.close)
    agents = Agents(settings.agents, GrpcEngineAgent, clock=clock)
    stack.push_async_callback(agents.close)
    factories = await _factories(settings, stack)
    timings = Timings(stage_s=settings.stage_timeout_s)
    runner = Runner(store, agents, clock, new_id=new_id, timings=timings, epoch=epoch_of(clock, new_id()))
    learned = await _learned(settings, clock)
    if settings.learned:
        # After the branches have ended.
        stack.push_async_callback(learned.write)
    branching = await stack.enter_async_context(
        Branching(
            BranchBook(
                controlled(settings.controls(), learned.gate, learned.ledger),
                bounds=settings.bounds(),
                quota=settings.quota(),
            ),
            store=store,
            runner=runner,
            preparer=Preparer(agents),
            agents=agents,
            templates=templates,
            foretelling=Foretelling(
                factories, clock, PredictorMetrics(registry), deadline_ms=settings.predict_ms
            ),
            metrics=BranchMetrics(registry),
            clock=clock,
        )
    )
    if settings.learned:
        branching.tasks.spawn(learned.keep(), name="what admission has learned")
    return branching


async def _learned(settings: ControllerSettings, clock: Clock) -> Learned:
    """The gate of the policy that prices, and what tenants have used. Without a file they begin anew."""
    controls = settings.controls()
    learned = Learned(
        Path(settings.learned),
        clock,
        gate=partial(
            Gate,
            curves=_curves(settings),
            seed=settings.audit_seed,
            exact=settings.exact_order,
            judges=settings.action0,
            fixed_threshold=settings.fixed_threshold,
        ),
        ledger=partial(Ledger, controls.engine_s, controls.engine_s_of),
    )
    if settings.learned:
        await learned.take_up()
    return learned


def _curves(settings: ControllerSettings) -> PriceCurves | None:
    if not settings.price_curve:
        return None
    try:
        document = json.loads(Path(settings.price_curve).read_text())
        if not isinstance(document, dict):
            raise ValueError(f"{settings.price_curve} holds no object")
        return curves_from(document)
    except (OSError, ValueError, RecursionError) as problem:
        raise ConfigError(f"DYNBRANCH_CONTROLLER_PRICE_CURVE: {problem}") from None


async def _factories(settings: ControllerSettings, stack: AsyncExitStack) -> dict[str, Factory]:
    factories = registered()
    if settings.draft_agent:
        agent = GrpcEngineAgent(settings.draft_agent)
        stack.push_async_callback(agent.close)
        model = settings.draft_model

        def draft(samples: int = Drafts().samples) -> DraftModel:
            return DraftModel(agent, Drafts(model=model, samples=samples))

        factories[DRAFT] = draft
    return factories


def epoch_of(clock: Clock, chance: bytes) -> int:
    """Later controllers have higher ones; two of one moment differ."""
    return clock.unix_ms() << 16 | int.from_bytes(chance[:2], "big")


def _folder(settings: ControllerSettings) -> Path | None:
    if not settings.templates:
        return None
    folder = Path(settings.templates)
    if not folder.is_dir():
        raise ConfigError(f"DYNBRANCH_CONTROLLER_TEMPLATES: {folder} is not a folder")
    return folder


def run() -> NoReturn:
    run_service("controller", main)
