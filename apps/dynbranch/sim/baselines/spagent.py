"""SPAgent's lossless phase before the fleet: while a step is reasoned out, sampled actions run into a buffer.

When a decision's decode has begun (so that its prompt is in the prefix cache), the scheduler's first level
picks the main requests that are speculated on; each is asked k times for its action at once, without the
reasoning, on the engine where it runs; the second level lets these short jobs go before all else. Each new
action runs into the buffer of its task. When the reasoned action comes and is in the buffer, its result is
there or under way.

A person's decision is not reasoned out by the model: nothing is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from dynbranch.domain.template import Template
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.sim.baselines.compared import Compared
from dynbranch.sim.baselines.early import Chain, EarlyResults
from dynbranch.sim.baselines.foretelling import (
    SAMPLED,
    Rates,
    chain_of,
    decoded,
    foretold,
    of_one,
    place_of,
)
from dynbranch.sim.baselines.subset import Main, chosen
from dynbranch.sim.fleet.engines import Fleet, Run
from dynbranch.sim.fleet.playing import Play, Records, Served, Then
from dynbranch.sim.fleet.workflows import Call, Decision, Step

FIRST = -1
"""The priority of short speculative jobs: before what harnesses wait for."""


@dataclass(frozen=True, slots=True)
class SpagentSetting:
    """``samples``: k. ``sample_tokens``: of a directly sampled action (short jobs have less than ten), and
    ``suffix_tokens`` of what asks for it. ``keep``: actions that were not chosen run on for later steps.
    ``charged``: the first level counts what the actions themselves hold up; in the system's own setting
    an action is a search and holds up nothing."""

    samples: int = 4
    sample_tokens: int = 9
    suffix_tokens: int = 16
    keep: bool = True
    charged: bool = False


@dataclass(slots=True, eq=False)
class _Reasoning:
    """A main request under way. ``begun``: chains of its actions."""

    task: _Task
    index: int
    decision: Decision
    call: Call
    engine: int
    rate: float
    asked: bool = False
    samples: list[Run] = field(default_factory=list)
    actions: set[tuple[str, ...]] = field(default_factory=set)
    chains: list[tuple[tuple[str, ...], Chain]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Task:
    play: Play
    early: EarlyResults
    reasoning: _Reasoning | None = None


@dataclass(slots=True)
class _Profile:
    """How long the actions of a decision point took."""

    count: int = 0
    mean_s: float = 0.0


class Spagent(Compared):
    """``rates``: of any of ``SAMPLED`` samples."""

    def __init__(
        self,
        fleet: Fleet,
        records: Records,
        setting: SpagentSetting,
        template: Template,
        rates: Rates,
        seed: int,
    ) -> None:
        super().__init__(fleet, records)
        self._setting = setting
        self._rates = rates
        self._seed = seed
        self._decoded = decoded(template)
        self._tasks: dict[str, _Task] = {}
        self._unasked: list[dict[str, _Reasoning]] = [{} for _ in fleet.places]
        self._profiles: dict[str, _Profile] = {}

    def begins(self, play: Play) -> float | None:
        self._tasks[play.name] = _Task(
            play, EarlyResults(self._fleet, self._records, self.spending.of(play.workflow.number))
        )
        return None

    def call(self, play: Play, step: Step, then: Then) -> None:
        task, decision = self._tasks[play.name], step.decision
        if task.early.take(step.call, then):
            return
        if decision is None or decision.point not in self._decoded:
            self._execute(step, then)
            return
        value = self._records.value_of(step)
        engine = self._fleet.least_canonical()
        place = place_of(play, play.turn, play.step)
        rate = of_one(self._rates.at(place), SAMPLED)
        reasoning = _Reasoning(task, play.step, decision, step.call, engine, rate)
        task.reasoning = reasoning

        def ended(run: Run) -> None:
            self._reasoned(reasoning)
            then(Served("miss", value))

        def shown(run: Run, mark: int) -> None:
            self._begun(reasoning)

        self._fleet.submit(engine, step.call, ended, marks=(0,), shown=shown)

    def ends(self, play: Play) -> None:
        task = self._tasks.pop(play.name)
        assert task.reasoning is None
        task.early.close()

    def validate_state(self) -> None:
        self._fleet.validate_state()
        for task in self._tasks.values():
            task.early.validate_state()
            reasoning = task.reasoning
            waiting = task.play.name in self._unasked[reasoning.engine] if reasoning else False
            assert not (waiting and reasoning and reasoning.asked)
        for engine in self._unasked:
            assert set(engine) <= set(self._tasks)

    def _begun(self, reasoning: _Reasoning) -> None:
        """Its prompt is read: the engine's main requests are weighed anew."""
        unasked = self._unasked[reasoning.engine]
        unasked[reasoning.task.play.name] = reasoning
        mains = [self._main(name, one) for name, one in unasked.items()]
        place = self._fleet.places[reasoning.engine]
        running = place.canonical + place.ahead
        for main in chosen(mains, self._setting.samples, partial(self._decode_s, running, reasoning.call)):
            self._ask(unasked.pop(str(main.key)))

    def _main(self, name: str, reasoning: _Reasoning) -> Main:
        profile = self._profiles.get(reasoning.decision.point)
        # Before anything was seen, an action is as long as it is hoped to be.
        act_s = 60.0 if profile is None else profile.mean_s
        read_again = self._setting.suffix_tokens
        if not reasoning.call.blocks:
            read_again += reasoning.call.prompt_tokens
        parameters = self._fleet.parameters
        place = self._fleet.places[reasoning.engine]
        if not isinstance(parameters, BatchParameters):
            # An engine that nothing slows down.
            return Main(name, reasoning.rate, act_s)
        prefill_s = (
            self._setting.samples * read_again / parameters.prefill_tokens_per_s * max(1, place.canonical)
        )
        if self._setting.charged and profile is not None:
            alone_ms = parameters.decode_ms(1, 0)
            stretch = (parameters.decode_ms(2, reasoning.call.prompt_tokens) - alone_ms) / alone_ms
            prefill_s += self._setting.samples * profile.mean_s * stretch * max(1, place.canonical)
        return Main(name, reasoning.rate, act_s, prefill_s)

    def _decode_s(self, running: int, call: Call, speculated: int) -> float:
        """What the samples of so many requests hold up those that run."""
        parameters, setting = self._fleet.parameters, self._setting
        if not isinstance(parameters, BatchParameters):
            return 0.0
        more = setting.samples * speculated
        read = call.prompt_tokens
        before_ms = parameters.decode_ms(running, running * read)
        after_ms = parameters.decode_ms(running + more, (running + more) * read)
        return (after_ms - before_ms) / 1000 * setting.sample_tokens * running

    def _ask(self, reasoning: _Reasoning) -> None:
        reasoning.asked = True
        account = self.spending.of(reasoning.task.play.workflow.number)
        account.opened += 1
        account.predictions += 1
        call = reasoning.call
        for number in range(self._setting.samples):
            asks = Call(
                call.stage,
                f"{call.content} ask {number}",
                call.prompt_tokens + self._setting.suffix_tokens,
                self._setting.sample_tokens,
                call.blocks,
            )
            told = partial(self._sampled, reasoning, number)
            run = self._fleet.submit(reasoning.engine, asks, told, ahead=True, priority=FIRST)
            reasoning.samples.append(run)

    def _sampled(self, reasoning: _Reasoning, number: int, run: Run) -> None:
        reasoning.samples.remove(run)
        self._count_sample(reasoning, run)
        play, decision = reasoning.task.play, reasoning.decision
        place = (self._seed, "spagent", play.workflow.number, play.turn, reasoning.index, number)
        action = foretold(decision, reasoning.rate, *place)
        if action in reasoning.actions:
            return
        reasoning.actions.add(action)
        calls = [call for name in action for call in chain_of(decision, name)]
        if calls:
            began = self._fleet.heap.now
            done = partial(self._acted, decision.point, began)
            reasoning.chains.append((action, reasoning.task.early.start(calls, done)))

    def _acted(self, point: str, began: float) -> None:
        profile = self._profiles.setdefault(point, _Profile())
        profile.count += 1
        profile.mean_s += (self._fleet.heap.now - began - profile.mean_s) / profile.count

    def _reasoned(self, reasoning: _Reasoning) -> None:
        task = reasoning.task
        task.reasoning = None
        if self._unasked[reasoning.engine].pop(task.play.name, None) is not None:
            account = self.spending.of(task.play.workflow.number)
            account.opened += 1
            account.refused += 1
        for run in reasoning.samples:
            self._count_sample(reasoning, run)
            self._fleet.abort(run)
        if not self._setting.keep:
            for action, chain in reasoning.chains:
                if action != reasoning.decision.picked:
                    task.early.cancel(chain, forget=False)

    def _count_sample(self, reasoning: _Reasoning, run: Run) -> None:
        self.spending.samples += 1
        if run.slot_at is not None:
            used_s = self._fleet.heap.now - run.slot_at
            self.spending.of(reasoning.task.play.workflow.number).draft_s += used_s
