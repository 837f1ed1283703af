"""DSP before the fleet: drafted steps run on their own drafted prefix, the target's steps beside them.

A step is a decision and the calls that it leads to. A session begins with a decision that the target starts
to decode: the approximator, a small model beside the engines, drafts what will be decided; the calls
that follow from it run; on their result the target starts its next step, while the approximator drafts that
one; until the session is as deep as was planned. The target's decision is compared with the draft when it
comes: at the first that differs all that came of the draft ends, and the workflow goes on with the target's.

Nothing asks how busy the engines are, and nothing survives the workflow. A person's decision is no step of
the target's: there is nothing to draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from dynbranch.domain.template import Template
from dynbranch.sim.baselines.compared import Compared
from dynbranch.sim.baselines.early import Chain, EarlyResults
from dynbranch.sim.baselines.foretelling import Rates, chain_of, decoded, foretold, place_of
from dynbranch.sim.baselines.plan_depth import PlanDepth, first_mismatch
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Play, Records, Served, Then
from dynbranch.sim.fleet.workflows import Call, Decision, Step
from dynbranch.sim.heap import Timer


@dataclass(frozen=True, slots=True)
class DspSetting:
    """``draft_s``: what a draft takes its model to decode. 0.73 s: the paper's 2.5 s a ReAct request (Fig.
    13b) by the 3.4 decisions that one has."""

    offset: int = 2
    lam: float = 0.95
    trained: int = 16
    draft_s: float = 0.73


@dataclass(slots=True, eq=False)
class _Session:
    """``left``: steps that it may still draft. ``begun``: indices of the turn's steps that it drafts or has
    drafted; ``drafts``: what it said of them."""

    turn: int
    left: int
    begun: list[int] = field(default_factory=list)
    drafts: dict[int, tuple[str, ...]] = field(default_factory=dict)
    drafting: Timer | None = None
    chains: list[Chain] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Task:
    """``streak``: the drafts since the last that was wrong, with their classes."""

    play: Play
    early: EarlyResults
    session: _Session | None = None
    streak: list[tuple[str, bool]] = field(default_factory=list)


class Dsp(Compared):
    def __init__(
        self, fleet: Fleet, records: Records, setting: DspSetting, template: Template, rates: Rates, seed: int
    ) -> None:
        super().__init__(fleet, records)
        self.depth = PlanDepth(setting.offset, setting.lam, setting.trained)
        self._setting = setting
        self._rates = rates
        self._seed = seed
        self._decoded = decoded(template)
        self._tasks: dict[str, _Task] = {}

    def begins(self, play: Play) -> float | None:
        self._tasks[play.name] = _Task(
            play, EarlyResults(self._fleet, self._records, self.spending.of(play.workflow.number))
        )
        return None

    def call(self, play: Play, step: Step, then: Then) -> None:
        task, index, decision = self._tasks[play.name], play.step, step.decision
        steps = decision is not None and decision.point in self._decoded
        if decision is not None and steps:
            then = partial(self._decided, task, index, decision, then)
        if not task.early.take(step.call, then):
            self._execute(step, then)
        if decision is not None and steps:
            self._plan(task, index, decision)

    def ends(self, play: Play) -> None:
        task = self._tasks.pop(play.name)
        self._give_up(task)
        self.depth.learn(task.streak)
        task.early.close()

    def validate_state(self) -> None:
        self._fleet.validate_state()
        for task in self._tasks.values():
            task.early.validate_state()
            session = task.session
            assert session is None or set(session.drafts) <= set(session.begun)

    def _plan(self, task: _Task, index: int, decision: Decision) -> None:
        session = task.session
        if session is not None and session.turn == task.play.turn and index in session.begun:
            return
        self._give_up(task)
        self.spending.of(task.play.workflow.number).opened += 1
        task.session = _Session(task.play.turn, self.depth.depth(decision.point))
        self._draft(task, task.session, index)

    def _draft(self, task: _Task, session: _Session, index: int) -> None:
        session.begun.append(index)
        session.left -= 1
        then = partial(self._drafted, task, session, index)
        session.drafting = self._fleet.heap.after(self._setting.draft_s, then)

    def _drafted(self, task: _Task, session: _Session, index: int) -> None:
        steps = self._steps(task, session)
        decision = steps[index].decision
        assert decision is not None
        session.drafting = None
        self.spending.drafts += 1
        self.spending.of(task.play.workflow.number).predictions += 1
        self.spending.drafting_s += self._setting.draft_s
        place = place_of(task.play, session.turn, index)
        number = task.play.workflow.number
        said = foretold(decision, self._rates.at(place), self._seed, "dsp", number, session.turn, index)
        session.drafts[index] = said
        calls = [call for name in said for call in chain_of(decision, name)]
        right = said == decision.picked
        go_on = partial(self._follow if right else self._astray, task, session, index, calls)
        self._run(task, session, calls, go_on)

    def _follow(self, task: _Task, session: _Session, index: int, calls: Sequence[Call]) -> None:
        """What was drafted has its result, and is what will be decided: the target's next step is known."""
        if not session.left:
            return
        steps = self._steps(task, session)
        known = {call.content for call in calls}
        after = index + 1
        while after < len(steps) and steps[after].call.content in known:
            after += 1
        if after == len(steps):
            return
        step = steps[after]
        if step.decision is not None and step.decision.point in self._decoded:
            self._run(task, session, [step.call], None)
            self._draft(task, session, after)
        else:
            self._run(task, session, [step.call], partial(self._follow, task, session, after, ()))

    def _astray(self, task: _Task, session: _Session, index: int, calls: Sequence[Call]) -> None:
        """The target starts on a prefix that will not be: one step, which is the least that it may cost."""
        steps = self._steps(task, session)
        later = [step for step in steps[index + 1 :] if step.decision is not None] or list(steps[-1:])
        if not session.left or not calls:
            return
        session.left = 0
        call = later[0].call
        said = " ".join(session.drafts[index])
        wrong = Call(call.stage, f"{call.content} after [{said}]", call.prompt_tokens, call.output_tokens)
        self._run(task, session, [wrong], None)

    def _run(self, task: _Task, session: _Session, calls: Sequence[Call], then: partial[None] | None) -> None:
        session.chains.append(task.early.start(calls, then))

    def _decided(self, task: _Task, index: int, decision: Decision, then: Then, served: Served) -> None:
        """The target has decoded a decision: it is held against its draft."""
        session = task.session
        if session is not None and index in session.begun:
            if index not in session.drafts:
                # The approximator was slower: what it is about to say is known.
                self._give_up(task)
            else:
                wrong = first_mismatch([session.drafts[index]], [decision.picked]) is not None
                task.streak.append((decision.point, not wrong))
                if wrong:
                    self.depth.learn(task.streak)
                    task.streak.clear()
                    self._give_up(task)
        then(served)

    def _give_up(self, task: _Task) -> None:
        session, task.session = task.session, None
        if session is None:
            return
        if session.drafting is not None:
            session.drafting.cancel()
        for chain in session.chains:
            task.early.cancel(chain, forget=True)

    @staticmethod
    def _steps(task: _Task, session: _Session) -> tuple[Step, ...]:
        return task.play.workflow.turns[session.turn].steps
