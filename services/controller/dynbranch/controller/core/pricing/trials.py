"""One branch's learning record, and the exactly-once arrival of its delayed costs and savings.

An account holds each fact once, whatever is redelivered or comes late; the target is a function of the facts,
so their order does not matter. A trial enters its class once; what comes later revises it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.estimates import PricingClass
from dynbranch.controller.core.pricing.prices import Footprint, Prices
from dynbranch.controller.core.pricing.returns import Classes, ClassKey, ClassModel, Context
from dynbranch.domain.ids import FillId, Instant, TrialId


@dataclass(frozen=True, slots=True)
class StageUse:
    """What became of one stage of a fill. ``wait_ms``: how long its demand followed it while it ran;
    ``abandoned``: for nothing."""

    stage: str
    used_ms: float
    wait_ms: float | None = None
    abandoned: bool = False


@dataclass(slots=True)
class FillAccount:
    """``expected_ms`` is (1 - p) C as recorded at reservation, ``prices`` beta(V') there. Each stage is a
    result of its own: ``saved`` and ``late`` are ms by stage, ``used`` what each held. None: not ended."""

    selection: str
    kind: PricingClass
    expected_ms: float
    prices: Prices
    kv_share: float = 0.0
    saved: dict[int, float] = field(default_factory=dict)
    used: tuple[Footprint, ...] | None = None
    late: dict[int, float] = field(default_factory=dict)

    @property
    def cost_ms(self) -> float:
        """A term of K: expected until it has ended, then what those stages held that nobody took."""
        if self.used is None:
            return 0.0 if self.saved else self.expected_ms
        return sum(self.prices.of(used) for number, used in enumerate(self.used) if number not in self.saved)

    @property
    def return_ms(self) -> float:
        return sum(self.saved.values()) - self.cost_ms - sum(self.late.values())

    @property
    def is_settled(self) -> bool:
        return self.used is not None


@dataclass(slots=True)
class Trial:
    trial_id: TrialId
    keys: tuple[ClassKey, ...]
    """The class and its parents."""
    lives: tuple[int, ...]
    x: Context
    begun: Instant
    setup_ms: float | None = None
    fills: dict[FillId, FillAccount] = field(default_factory=dict)
    entered: Instant | None = None
    target: float = 0.0
    """As it stands in the models."""
    judged: bool = False

    @property
    def return_ms(self) -> float:
        """Equation 4."""
        return sum(fill.return_ms for fill in self.fills.values()) - (self.setup_ms or 0.0)


class Trials:
    def __init__(self, classes: Classes, constants: Constants) -> None:
        self._classes = classes
        self._constants = constants
        self._trials: OrderedDict[TrialId, Trial] = OrderedDict()
        self.ignored = 0
        """Events of trials that nobody knows any more, and facts that were known already."""

    def __len__(self) -> int:
        return len(self._trials)

    @property
    def pending(self) -> int:
        return sum(trial.entered is None for trial in self._trials.values())

    def get(self, trial_id: TrialId) -> Trial | None:
        return self._trials.get(trial_id)

    def begin(self, trial_id: TrialId, key: ClassKey, x: Context, now: Instant) -> Trial:
        """Before expansion, so that nothing that comes during it is lost."""
        assert trial_id not in self._trials, "a branch has one trial"
        keys = tuple(key[:end] for end in range(len(key), -1, -1))
        models = [self._classes.get(each) for each in keys]
        for model in models:
            model.pending += 1
        trial = Trial(trial_id, keys, tuple(model.life for model in models), x, now)
        self._trials[trial_id] = trial
        while len(self._trials) > self._constants.most_trials:
            oldest = next(iter(self._trials.values()))
            self.enter(oldest, now)
            del self._trials[oldest.trial_id]
        return trial

    # -- facts, each once ----------------------------------------------------------------------------------

    def charge_setup(self, trial_id: TrialId, spent_ms: float) -> bool:
        trial = self._trials.get(trial_id)
        if trial is None or trial.setup_ms is not None:
            return self._ignore()
        trial.setup_ms = spent_ms
        return self._revise(trial)

    def reserve(self, trial_id: TrialId, fill_id: FillId, account: FillAccount) -> bool:
        trial = self._trials.get(trial_id)
        if trial is None or fill_id in trial.fills:
            return self._ignore()
        trial.fills[fill_id] = account
        return self._revise(trial)

    def consume(self, trial_id: TrialId, fill_id: FillId, stage: int, saved_ms: float) -> bool:
        """At promotion or adoption, whichever workflow demanded it. Later hits are not this trial's."""
        fill = self._fill(trial_id, fill_id)
        if fill is None or stage in fill.saved:
            return self._ignore()
        fill.saved[stage] = saved_ms
        return self._revise(self._trials[trial_id])

    def end(self, trial_id: TrialId, fill_id: FillId, used: tuple[Footprint, ...]) -> bool:
        fill = self._fill(trial_id, fill_id)
        if fill is None or fill.used is not None:
            return self._ignore()
        fill.used = used
        return self._revise(self._trials[trial_id])

    def wait(self, trial_id: TrialId, fill_id: FillId, stage: int, late_ms: float) -> bool:
        """A term of W: an adopted demand ended later than executing would have, or was abandoned."""
        fill = self._fill(trial_id, fill_id)
        if fill is None or stage in fill.late:
            return self._ignore()
        fill.late[stage] = late_ms
        return self._revise(self._trials[trial_id])

    # -- the models ----------------------------------------------------------------------------------------

    def enter(self, trial: Trial, now: Instant) -> bool:
        """At resolution or expiry, once."""
        if trial.entered is not None:
            return False
        trial.entered, trial.target = now, trial.return_ms
        for model in self._unpend(trial):
            model.enter(trial.x, trial.target)
        self._judge(trial)
        return True

    def void(self, trial_id: TrialId) -> bool:
        """It turned out to be no branch at all: its decision was recorded already."""
        trial = self._trials.get(trial_id)
        if trial is None or trial.entered is not None:
            return self._ignore()
        self._unpend(trial)
        del self._trials[trial_id]
        return True

    def pass_time(self, now: Instant) -> None:
        """Trials stand in the order of their beginning."""
        c, over = self._constants, []
        for trial in self._trials.values():
            if now - trial.begun < min(c.trial_ttl_s, c.keep_closed_s):
                break
            old = now - trial.begun >= c.trial_ttl_s
            if trial.entered is None and old:
                self.enter(trial, now)
            closed = trial.entered is not None and now - trial.entered >= c.keep_closed_s
            if closed and (old or all(fill.is_settled for fill in trial.fills.values())):
                over.append(trial.trial_id)
        for trial_id in over:
            del self._trials[trial_id]

    def _unpend(self, trial: Trial) -> list[ClassModel]:
        """The models that still are of its life."""
        known = [self._classes.known(*place) for place in zip(trial.keys, trial.lives, strict=True)]
        models = [model for model in known if model is not None]
        for model in models:
            model.pending -= 1
        return models

    def _revise(self, trial: Trial) -> bool:
        if trial.entered is None:
            return True
        after = trial.return_ms
        if after != trial.target:
            for key, life in zip(trial.keys, trial.lives, strict=True):
                model = self._classes.known(key, life)
                if model is not None:
                    model.revise(trial.x, trial.target, after)
            trial.target = after
        self._judge(trial)
        return True

    def _judge(self, trial: Trial) -> None:
        """Once, when nothing is outstanding: whether its class has turned."""
        if trial.judged or not all(fill.is_settled for fill in trial.fills.values()):
            return
        trial.judged = True
        key, life = trial.keys[0], trial.lives[0]
        model = self._classes.known(key, life)
        if model is not None and model.judge(trial.x, trial.target, self._constants):
            self._classes.restart(key)

    def _fill(self, trial_id: TrialId, fill_id: FillId) -> FillAccount | None:
        trial = self._trials.get(trial_id)
        return None if trial is None else trial.fills.get(fill_id)

    def _ignore(self) -> bool:
        self.ignored += 1
        return False

    def validate_state(self) -> None:
        assert len(self._trials) <= self._constants.most_trials
        pending: dict[tuple[ClassKey, int], int] = {}
        for trial in self._trials.values():
            for key, life in zip(trial.keys, trial.lives, strict=True):
                place = (key, life)
                pending[place] = pending.get(place, 0) + (trial.entered is None)
            assert trial.entered is None or abs(trial.target - trial.return_ms) < 1e-6
        for key, model in self._classes.rows():
            assert model.pending == pending.get((key, model.life), 0)
