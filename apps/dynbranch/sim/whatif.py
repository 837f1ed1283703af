"""A question of one's own: what would these workflows take on such engines, in this arm and in that?"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Final

from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.runtime.scheduling import usable_cores
from dynbranch.sim.arms import arm_of
from dynbranch.sim.fleet.runs import Outcome, performed
from dynbranch.sim.fleet.workflows import Call, Workflow, Workload

USUAL: Final = ("floor", "c1", "c2", "dynbranch")


MAX_DAYS: Final = 100
"""From the first workflow to the last. A day takes seconds to simulate, also one on which nothing happens."""

_DAY_S: Final = 86_400.0


class NoAnswer(ValueError):
    """The question can not be asked. The message says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """``history``: workflows that were seen before, for arms that prepare themselves with them."""

    workload: Workload
    parameters: BatchParameters
    engines: int
    seed: int = 1
    history: tuple[Workflow, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """``latencies_s`` in the order of the workload, without a person's pauses. ``outcomes`` of requests.
    ``fills_s``: slot time of what ran ahead, ``discarded_s`` that of what nobody took. ``wrong``: answers
    that an execution would not have given."""

    arm: str
    latencies_s: tuple[float, ...]
    outcomes: Mapping[str, int]
    fills: int
    used_s: float
    discarded_s: float
    wrong: int
    utilisation: float


def answers(question: Question, names: Sequence[str], told: Callable[[str], None]) -> list[Answer]:
    """In the order of ``names``, each in a process of its own; ``told`` hears whose has come. Raises
    NoAnswer, UnknownArm."""
    check(question)
    for name in names:
        arm_of(name)
    workers = max(1, min(len(names), usable_cores()))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(answer, question, name): name for name in names}
        found: dict[str, Answer] = {}
        for done in as_completed(running):
            found[running[done]] = done.result()
            told(running[done])
    return [found[name] for name in names]


def answer(question: Question, name: str) -> Answer:
    """Raises UnknownArm."""
    arm = arm_of(name, history=question.history)
    outcome, serving = performed(question.workload, arm, question.parameters, question.engines, question.seed)
    serving.validate_state()
    return _answer(name, outcome)


def _answer(name: str, outcome: Outcome) -> Answer:
    account, slices = outcome.account, outcome.slices
    return Answer(
        name,
        tuple(sum(play.turns_s) for play in outcome.plays),
        dict(Counter(one for play in outcome.plays for one in play.outcomes)),
        account.fills,
        account.used_s,
        account.discarded_s,
        outcome.wrong,
        sum(one.utilisation for one in slices) / len(slices) if slices else 0.0,
    )


def check(question: Question) -> None:
    """Raises NoAnswer."""
    if question.engines < 1 or not question.workload.workflows:
        raise NoAnswer("there are no engines, or no workflows")
    room = question.parameters.kv_pool_tokens
    largest = max(call.prompt_tokens + call.output_tokens for call in _calls(question.workload))
    if largest > room:
        raise NoAnswer(f"a request of {largest} tokens is larger than an engine's KV pool of {room}")
    days = max(one.at_s + _paused_s(one) for one in question.workload.workflows) / _DAY_S
    if days > MAX_DAYS:
        raise NoAnswer(f"the workflows take {days:.0f} days, and no more than {MAX_DAYS} are simulated")


def _paused_s(workflow: Workflow) -> float:
    """How long it waits between its requests."""
    return sum(turn.gap_s + sum(step.call.before_s for step in turn.steps) for turn in workflow.turns)


def at_rate(workload: Workload, rate: float) -> Workload:
    """The same workflows in the same order, so that ``rate`` a second begin on average. Within a workflow
    nothing changes. Raises NoAnswer."""
    last_s = max((one.at_s for one in workload.workflows), default=0.0)
    if not last_s or len(workload.workflows) < 2:
        raise NoAnswer("workflows that all begin at once have no rate")
    scale = (len(workload.workflows) - 1) / rate / last_s
    return replace(
        workload,
        name=f"{workload.name} at {rate:g}/s",
        workflows=tuple(replace(one, at_s=one.at_s * scale) for one in workload.workflows),
        writes=tuple(replace(one, at_s=one.at_s * scale) for one in workload.writes),
    )


def _calls(workload: Workload) -> Iterator[Call]:
    for workflow in workload.workflows:
        for turn in workflow.turns:
            for step in turn.steps:
                yield step.call
                if step.decision is not None:
                    for chain in step.decision.chains.values():
                        yield from chain
