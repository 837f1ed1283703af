"""How true the simulator is: the paper's curve of fills that stretch a request, and a real run foretold.

The real run: the demo's workflows on this machine's embedded engines, each record with DynBranch disabled and
running ahead. Before, between and after, the same engines are probed; the simulator, with a preset fitted to
the probes, is given what was asked and says how long it takes.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.bench.sim_fidelity_probes import EVERY, SHORTER, Block, Fitted, Prober, fitted, raw_of
from dynbranch.bench.sim_fidelity_replay import Costs, template_of, workflow_of
from dynbranch.bench.sim_fidelity_stretch import (
    FILL_OUTPUT_TOKENS,
    FIXED_CONTEXT_WORDS,
    POINTS,
    Shapes,
    Stretched,
    stretched,
)
from dynbranch.calibration.engines import HttpEngine, found_by_agent, session_with
from dynbranch.calibration.probing import ProbeFailed
from dynbranch.demo.branch_arms import AHEAD_ONLY, FLOOR, Arm, write_templates
from dynbranch.demo.branch_runs import BranchesFailed, Run, Session, Size, interleaved, options_for
from dynbranch.demo.flows import MENUS, REACT, ROUTING_CHAIN, SUB_AGENTS
from dynbranch.demo.harness import models
from dynbranch.demo.measures import Figure, exact, median, ratio
from dynbranch.demo.playing import Played
from dynbranch.demo.stack import Stack, running
from dynbranch.enginemodel.parameters import H200_QWEN3_32B
from dynbranch.sim.fleet.playing import Arm as SimulatedArm
from dynbranch.sim.fleet.playing import floor as simulated_floor
from dynbranch.sim.fleet.runs import Played as SimulatedPlay
from dynbranch.sim.fleet.runs import run
from dynbranch.sim.fleet.serving import DynBranchArm
from dynbranch.sim.fleet.workflows import Workload

RECORDS: Final = {ROUTING_CHAIN: 4, REACT: 2, SUB_AGENTS: 2, MENUS: 4}
QUICK: Final = {ROUTING_CHAIN: 1, REACT: 1, SUB_AGENTS: 1, MENUS: 1}
ARMS: Final = (FLOOR, AHEAD_ONLY)
SEEDS: Final = (1, 2, 3)
PROBES: Final = 40
FILL_OUTPUTS: Final = (500, 750, 1000, 1500, 2000)
"""What the curve is with other lengths of a fill, which the paper does not tell."""
TITLE: Final = "What the simulator says over what was measured (95 % interval)"
LIMIT: Final = {"stretch_curve_max_error": 0.25, "mean_latency_error": 0.15}


def measure(tell: Tell, *, quick: bool = False) -> Measured:
    """Raises BenchFailed."""
    tell("the stretch curve", 0, 0)
    figures, curve, rows = stretch_curve()
    try:
        compared = asyncio.run(real_runs(tell, QUICK if quick else RECORDS))
    except (BranchesFailed, ProbeFailed) as failure:
        raise BenchFailed(str(failure)) from failure
    figures |= compared.figures()
    raw = {"stretch": curve, "real": compared.raw()}
    failures = [
        f"{key} is {figures[key].value:.2f}" for key, most in LIMIT.items() if figures[key].value > most
    ]
    table = (("", "measured", "over it", "95 %"), *rows, *compared.rows())
    return Measured(figures, raw, tuple(failures), table, TITLE)


# -- the curve ---------------------------------------------------------------------------------------------


def stretch_curve() -> tuple[dict[str, Figure], dict[str, Any], list[tuple[str, ...]]]:
    """The error of a point is that of the latency's ratio. Also what else the shapes could have been."""
    errors: list[Figure] = []
    rows: list[tuple[str, ...]] = []
    points: list[dict[str, Any]] = []
    for point in POINTS:
        found = _pooled([stretched(H200_QWEN3_32B, point, seed=seed, probes=PROBES) for seed in SEEDS])
        middle = median(found.ratios)
        ends = [abs(end / point.stretch - 1) for end in (middle.ci_low, middle.ci_high, middle.value)]
        errors.append(Figure(found.error(point), min(ends), max(ends), middle.n))
        share = statistics.mean(found.kv_shares)
        points.append({"point": point.name, "paper": point.stretch, "model": middle.value, "kv_share": share})
        over = [value / point.stretch for value in (middle.value, middle.ci_low, middle.ci_high)]
        rows.append(
            (point.name, f"{point.stretch:.2f} (the paper)", f"{over[0]:.3f}", _span(over[1], over[2]))
        )
    others = {
        str(tokens): [
            round(stretched(H200_QWEN3_32B, point, seed=1, probes=PROBES, shapes=shapes).stretch, 3)
            for point in POINTS
        ]
        for tokens in FILL_OUTPUTS
        for shapes in (Shapes(fill_output_tokens=tokens),)
    }
    raw = {
        "points": points,
        "shapes": {"fill_output_tokens": FILL_OUTPUT_TOKENS, "fixed_context_words": FIXED_CONTEXT_WORDS},
        "by_fill_output_tokens": others,
    }
    return {"stretch_curve_max_error": max(errors, key=lambda one: one.value)}, raw, rows


def _pooled(found: Sequence[Stretched]) -> Stretched:
    return Stretched(
        tuple(ratio for one in found for ratio in one.ratios),
        tuple(share for one in found for share in one.kv_shares),
    )


# -- the real run ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """One workflow in one arm: as it was, and as the simulator says. ``reference_ms``: the machine's speed
    around it. ``outcomes`` of its requests of a model, as they were and as foretold."""

    arm: Arm
    kind: str
    record: str
    measured_s: float
    foretold_s: float
    reference_ms: float
    outcomes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Compared:
    pairs: tuple[Pair, ...]
    preset: Fitted
    blocks: tuple[Block, ...]

    def cells(self) -> dict[tuple[str, str], Figure]:
        """By arm and workflow type: mean foretold over mean measured."""
        keys = dict.fromkeys((pair.arm.name, pair.kind) for pair in self.pairs)
        return {key: self._over([p for p in self.pairs if (p.arm.name, p.kind) == key]) for key in keys}

    def figures(self) -> dict[str, Figure]:
        """``mean_latency_error``: of the worse arm, over its workflows."""
        figures: dict[str, Figure] = {}
        arms = dict.fromkeys(pair.arm.name for pair in self.pairs)
        by_arm = {arm: self._over([pair for pair in self.pairs if pair.arm.name == arm]) for arm in arms}
        for arm, over in by_arm.items():
            figures[f"{arm}_foretold_over_measured"] = over
        for (arm, kind), over in self.cells().items():
            figures[f"{arm}_{kind.replace('-', '_')}_foretold_over_measured"] = over
        cells = [abs(over.value - 1) for over in self.cells().values()]
        worst = max(by_arm.values(), key=lambda over: abs(over.value - 1))
        figures["mean_latency_error"] = _error(worst)
        figures["mean_error_of_cells"] = exact(statistics.mean(cells), len(cells))
        figures["worst_error_of_cells"] = exact(max(cells), len(cells))
        return figures

    def rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for (arm, kind), over in self.cells().items():
            measured = [p.measured_s for p in self.pairs if (p.arm.name, p.kind) == (arm, kind)]
            rows.append(
                (
                    f"{kind}, {arm}",
                    f"{statistics.mean(measured):.1f} s",
                    f"{over.value:.2f}",
                    _span(over.ci_low, over.ci_high),
                )
            )
        return rows

    def raw(self) -> dict[str, Any]:
        return {
            "pairs": [
                {
                    "arm": pair.arm.name,
                    "workflow": pair.kind,
                    "record": pair.record,
                    "measured_s": round(pair.measured_s, 3),
                    "foretold_s": round(pair.foretold_s, 3),
                    "reference_ms": round(pair.reference_ms, 1),
                    "outcomes": [" ".join(ones) for ones in pair.outcomes],
                }
                for pair in self.pairs
            ],
            "preset": {
                "reference_ms": self.preset.reference_ms,
                "overhead_s": self.preset.overhead_s,
                "form_tokens": self.preset.form_tokens,
                **_parameters(self.preset),
            },
            "fit": dict(self.preset.raw),
            "blocks": raw_of(self.blocks),
        }

    @staticmethod
    def _over(pairs: Sequence[Pair]) -> Figure:
        return ratio([(pair.foretold_s, pair.measured_s) for pair in pairs])


@dataclass(frozen=True, slots=True)
class Seen:
    """A record in both arms, between two probes each."""

    runs: Mapping[Arm, Run]
    references_ms: Mapping[Arm, float]


async def real_runs(tell: Tell, records: Mapping[str, int]) -> Compared:
    """Raises BenchFailed, BranchesFailed, ProbeFailed and what players raise."""
    with TemporaryDirectory(prefix="dynbranch-bench-") as name:
        folder = Path(name)
        write_templates(folder / "templates", ARMS)
        tell("starting the services", 0, 0)
        async with AsyncExitStack() as owned:
            stack = await owned.enter_async_context(running(options_for(folder, Size())))
            prober = await _prober(stack, owned)
            session = Session(stack, models(stack.url)[0], ARMS)
            await session.open(owned)
            await session.warm(tell)
            blocks, seen = await _interleaved(tell, session, prober, records)
    preset = fitted(blocks)
    return Compared(tuple(_pairs(seen, preset)), preset, tuple(blocks))


async def _prober(stack: Stack, owned: AsyncExitStack) -> Prober:
    session = await owned.enter_async_context(session_with(""))
    engines = []
    for address in stack.addresses.agents[:2]:
        found = await found_by_agent(address)
        engines.append(HttpEngine(found.url, found.machine.model, session))
    return Prober(engines, Random(SEEDS[0]))


async def _interleaved(
    tell: Tell, session: Session, prober: Prober, records: Mapping[str, int]
) -> tuple[list[Block], list[Seen]]:
    todo = list(interleaved(records))
    blocks, seen = [await prober.block(EVERY)], []
    before_ms = blocks[0].reference_ms
    for number, (kind, place) in enumerate(todo):
        runs: dict[Arm, Run] = {}
        references_ms: dict[Arm, float] = {}
        for arm in ARMS if number % 2 else ARMS[::-1]:
            tell(f"{kind}, {arm.title}", number, len(todo))
            runs[arm] = await session.one(arm, kind, place, "f")
            after_ms = await prober.reference_ms()
            references_ms[arm] = (before_ms + after_ms) / 2
            before_ms = after_ms
        seen.append(Seen(runs, references_ms))
        tell("probing the engines", number, len(todo))
        blocks.append(await prober.block(EVERY if number % 2 else SHORTER))
        before_ms = blocks[-1].reference_ms
    return blocks, seen


def _pairs(seen: Sequence[Seen], preset: Fitted) -> list[Pair]:
    costs = Costs(preset.overhead_s, preset.form_tokens)
    pairs = []
    for one in seen:
        floor = one.runs[FLOOR].played
        for arm, done in one.runs.items():
            speed_ms = one.references_ms[arm]
            play = foretold(arm, floor, done, costs, preset, speed_ms)
            was = tuple(step.outcome for step in done.played.steps if step.kind == "chat")
            pairs.append(
                Pair(
                    arm,
                    floor.workflow_type,
                    floor.record,
                    done.played.latency_ms / 1000,
                    sum(play.turns_s),
                    speed_ms,
                    (was, play.outcomes),
                )
            )
    return pairs


def foretold(
    arm: Arm, floor: Played, done: Run, costs: Costs, preset: Fitted, reference_ms: float
) -> SimulatedPlay:
    """Its turns are without a person's pauses, as is what is measured."""
    workflow = workflow_of(floor, costs, done.branches)
    workload = Workload(floor.workflow_type, template_of(floor.workflow_type), (workflow,))
    simulated: SimulatedArm
    if arm is FLOOR:
        simulated = simulated_floor
    else:
        simulated = DynBranchArm(arm.name, reuse=arm.shares, width=Size().fills)
    (play,) = run(workload, simulated, preset.at(reference_ms), engines=1).plays
    return play


def _parameters(preset: Fitted) -> dict[str, float]:
    one = preset.parameters
    return {
        "decode_step_ms": one.decode_step_ms,
        "batched_extra_ms": one.batched_extra_ms,
        "sequence_ms": one.sequence_ms,
        "kilotoken_ms": one.kilotoken_ms,
        "prefill_tokens_per_s": one.prefill_tokens_per_s,
        "prefill_chunk_tokens": one.prefill_chunk_tokens,
    }


def _error(over: Figure) -> Figure:
    ends = (abs(over.ci_low - 1), abs(over.ci_high - 1))
    low = 0.0 if over.ci_low <= 1 <= over.ci_high else min(ends)
    return Figure(abs(over.value - 1), low, max(ends), over.n)


def _span(low: float, high: float) -> str:
    return f"{low:.2f}–{high:.2f}"
