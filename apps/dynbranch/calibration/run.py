"""One calibration, from an engine's address to its curves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from dynbranch.calibration.curves import Stretch, curves_of
from dynbranch.calibration.document import document_of
from dynbranch.calibration.engines import HttpEngine, found_by_agent, found_by_url, session_with
from dynbranch.calibration.plan import Level, Machine, plan_for
from dynbranch.calibration.probing import Engine, ProbeFailed, Prober, Tell
from dynbranch.controller.core.pricing.prices import PriceCurves, prior_curves
from dynbranch.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Wanted:
    """``agent`` or ``url``. What is 0 is as the engine says, if it does. A probe alone takes about
    ``probe_s``; a machine that is left alone tells no more after ``most_rounds``."""

    agent: str = ""
    url: str = ""
    model: str = ""
    slots: int = 0
    kv_budget_tokens: int = 0
    context_tokens: int = 0
    most_fills: int = 48
    seconds: float = 90.0
    probe_s: float = 0.5
    most_rounds: int = 12
    api_key: str = ""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Calibrated:
    curves: PriceCurves
    prior: PriceCurves
    stretches: Mapping[Level, Stretch]
    machine: Machine
    document: dict[str, Any]
    notes: tuple[str, ...]


async def calibrate(wanted: Wanted, clock: Clock, tell: Tell) -> Calibrated:
    """Raises ProbeFailed, NothingToMeasure, TooFewProbes."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(session_with(wanted.api_key))
        found = (
            await found_by_agent(wanted.agent) if wanted.agent else await found_by_url(wanted.url, session)
        )
        machine = _as_wanted(found.machine, wanted)
        if not machine.slots:
            raise ProbeFailed(
                "an engine does not tell how many requests it runs at once: say it with --slots"
            )
        engine = HttpEngine(found.url, machine.model, session)
        done = await measure(engine, machine, wanted, clock, tell)
    if found.busy:
        done = replace(done, notes=(f"{found.busy} other requests ran there: rough", *done.notes))
    return done


async def measure(engine: Engine, machine: Machine, wanted: Wanted, clock: Clock, tell: Tell) -> Calibrated:
    """Raises ProbeFailed, NothingToMeasure, TooFewProbes."""
    begun = clock.now()
    prober = Prober(engine, clock, Random(wanted.seed), machine.context_tokens)
    # That there is something to measure is said before anything is.
    plan_for(machine, most_fills=wanted.most_fills, output_tokens=1)
    tell("how fast the engine is", 0.0)
    await prober.size(wanted.probe_s)
    plan = plan_for(machine, most_fills=wanted.most_fills, output_tokens=prober.fill_tokens)
    left_s = max(1.0, wanted.seconds - (clock.now() - begun))
    probes = await prober.measure(plan, most_rounds=wanted.most_rounds, seconds=left_s, tell=tell)
    stretches, prior = probes.stretches(plan), prior_curves()
    curves = curves_of(stretches, plan, machine, prior)
    document = document_of(
        curves,
        stretches,
        machine,
        probe_tokens=prober.probe_tokens,
        alone_ms=probes.alone_ms,
        at=clock.unix_ms(),
    )
    notes = []
    if curves.kv == prior.kv:
        notes.append("the KV price is the prior: no budget was told, or contexts have no room to show one")
    if prober.failures:
        notes.append(f"{len(prober.failures)} fills failed, the last: {prober.failures[-1]}")
    return Calibrated(curves, prior, stretches, machine, document, tuple(notes))


def _as_wanted(machine: Machine, wanted: Wanted) -> Machine:
    return Machine(
        model=wanted.model or machine.model,
        slots=wanted.slots or machine.slots,
        kv_budget_tokens=wanted.kv_budget_tokens or machine.kv_budget_tokens,
        context_tokens=wanted.context_tokens or machine.context_tokens,
    )
