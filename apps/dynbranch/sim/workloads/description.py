"""What a workload comes to by itself, before anything serves it: lengths, shares, how well it is foretold.

Times are those of an engine that has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from dynbranch.domain.template import Window
from dynbranch.enginemodel.parameters import H200_QWEN3_32B, BatchParameters
from dynbranch.sim.fleet.workflows import Call, Decision, Step, Turn, Workflow, Workload


@dataclass(frozen=True, slots=True)
class Description:
    """``floor_s``: the mean of what is measured. ``window_s``: the median decode of a deciding stage, or
    thinking before a turn; ``window_over_execution``: all windows over all that is measured and no window;
    ``fillable``: the share of what is measured that can run ahead; ``reusable``: that of calls which an
    earlier workflow made, word for word.

    ``top``: how often what was picked is among the first one, two, three. ``shown``: the share of decodes
    whose choice shows, or is spoken of, before their end. ``later``: of candidates that were not picked, how
    many are picked later in the same workflow. ``recurring``: of the stages that can run ahead, in workflows
    that are new, how many an earlier workflow had as well without anybody's making it so.
    """

    title: str
    workflows: int
    repeated: float
    overlapping: float
    calls: float
    decisions: float
    floor_s: float
    window_s: float
    execution_s: float
    window_over_execution: float
    fillable: float
    reusable: float
    candidates: float
    top: tuple[float, float, float]
    shown: float
    later: float
    recurring: float

    def as_json(self) -> dict[str, Any]:
        return {
            key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()
        }


def describe(workload: Workload, parameters: BatchParameters = H200_QWEN3_32B) -> Description:
    found = workload.workflows
    steps = [step for workflow in found for turn in workflow.turns for step in turn.steps]
    decisions = [step.decision for step in steps if step.decision is not None]
    chosen = [one for one in decisions if one.picked]
    turns = [turn for workflow in found for turn in workflow.turns if turn.measured]
    measured_s = sum(_turn_s(turn, parameters) for turn in turns)
    windows = list(_windows(workload, parameters))
    executions = [
        _chain_s(one.chains[one.picked[0]], parameters) for one in chosen if one.picked[0] in one.chains
    ]
    decoding = any(point.window is Window.DECODE for point in workload.template.decision_points)
    window_s = sum(windows) if decoding else 0.0
    rest_s = measured_s - window_s
    return Description(
        title=workload.name,
        workflows=len(found),
        repeated=_share(workflow.repeats is not None for workflow in found),
        overlapping=_share(workflow.shares is not None for workflow in found),
        calls=len(steps) / max(1, len(found)),
        decisions=len(chosen) / max(1, len(found)),
        floor_s=measured_s / max(1, len(turns)),
        window_s=median(windows) if windows else 0.0,
        execution_s=median(executions) if executions else 0.0,
        window_over_execution=window_s / rest_s if rest_s else 0.0,
        fillable=sum(executions) / measured_s if measured_s else 0.0,
        reusable=_reusable_s(found, parameters) / measured_s if measured_s else 0.0,
        candidates=fmean(len(one.ranked) for one in chosen) if chosen else 0.0,
        top=(_top(chosen, 1), _top(chosen, 2), _top(chosen, 3)),
        shown=_share(one.shown_at is not None or _is_named(one) for one in chosen),
        later=_later(found),
        recurring=_recurring(workload),
    )


def _is_named(decision: Decision) -> bool:
    return any(name in decision.picked for _, name in decision.spoken)


def seconds(call: Call, parameters: BatchParameters) -> float:
    """Alone, with nothing of its prompt in the cache."""
    context = call.prompt_tokens + call.output_tokens // 2
    prefill_ms = max(parameters.decode_step_ms, call.prompt_tokens / parameters.prefill_tokens_per_s * 1000)
    return (prefill_ms + (call.output_tokens - 1) * parameters.decode_ms(1, context)) / 1000


def _turn_s(turn: Turn, parameters: BatchParameters) -> float:
    return sum(step.call.before_s + seconds(step.call, parameters) for step in turn.steps)


def _chain_s(chain: Iterable[Call], parameters: BatchParameters) -> float:
    return sum(call.before_s + seconds(call, parameters) for call in chain)


def _windows(workload: Workload, parameters: BatchParameters) -> Iterator[float]:
    """Of decisions that something follows."""
    of = {point.name: point.window for point in workload.template.decision_points}
    for workflow in workload.workflows:
        for turn, after in zip(workflow.turns, (*workflow.turns[1:], None), strict=True):
            for step in turn.steps:
                if step.decision is None or not step.decision.picked:
                    continue
                if of[step.decision.point] is Window.DECODE:
                    yield seconds(step.call, parameters)
                elif after is not None:
                    yield after.gap_s


def _top(chosen: list[Decision], most: int) -> float:
    """By what they lead to: two names of one thing are one."""

    def right(one: Decision) -> bool:
        wanted = _contents(one, one.picked[0])
        return any(_contents(one, name) == wanted for name in one.ranked[:most])

    return _share(right(one) for one in chosen)


def _contents(decision: Decision, selection: str) -> tuple[str, ...]:
    return tuple(call.content for call in decision.chains[selection])


def _later(found: Iterable[Workflow]) -> float:
    asked: list[bool] = []
    for workflow in found:
        steps = [step for turn in workflow.turns for step in turn.steps]
        for place, step in enumerate(steps):
            if step.decision is not None and step.decision.picked:
                after = {name for later in steps[place + 1 :] for name in _picked(later)}
                others = (name for name in step.decision.ranked if name not in step.decision.picked)
                asked += [name in after for name in others]
    return _share(asked)


def _picked(step: Step) -> tuple[str, ...]:
    return step.decision.picked if step.decision is not None else ()


def _recurring(workload: Workload) -> float:
    ahead = {stage for point in workload.template.decision_points for stage in point.then}
    known: set[str] = set()
    again: list[bool] = []
    for workflow in workload.workflows:
        contents = [
            step.call.content for turn in workflow.turns for step in turn.steps if step.call.stage in ahead
        ]
        if workflow.repeats is None and workflow.shares is None:
            again += [content in known for content in contents]
        known.update(contents)
    return _share(again)


def _reusable_s(found: Iterable[Workflow], parameters: BatchParameters) -> float:
    known: set[str] = set()
    again_s = 0.0
    for workflow in found:
        own: list[str] = []
        for turn in workflow.turns:
            for step in turn.steps:
                if turn.measured and step.call.content in known:
                    again_s += step.call.before_s + seconds(step.call, parameters)
                own.append(step.call.content)
        known.update(own)
    return again_s


def _share(of: Iterable[bool]) -> float:
    held = list(of)
    return sum(held) / len(held) if held else 0.0
