"""Fills: their stages one after another, what they hold, and what the store says became of them.

The store is the authority: a stage moves on from ``running`` by its settlements. What the shell says of a
stage that has ended gives back what it held and lets the chain go on.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import assert_never

from dynbranch.controller.core.branches.admission import LoadView
from dynbranch.controller.core.branches.experience import FillOver
from dynbranch.controller.core.branches.lifecycle import FILL_ENDS, FillMove, FillState
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    Detach,
    DiscardRuns,
    Effect,
    Ending,
    Fact,
    FillsDiscarded,
    Mark,
    PrepareStage,
    RunStage,
    StageBegan,
    StageEnded,
    StageKey,
    StagePrepared,
    Told,
)
from dynbranch.controller.core.branches.records import Branch, Fill, StageRun
from dynbranch.controller.core.branches.reservations import Quota, Reservations
from dynbranch.controller.core.pricing.trials import StageUse
from dynbranch.domain.fills import DiscardReason, Settlement, SettlementKind
from dynbranch.domain.ids import BranchId, FillId, Instant
from dynbranch.domain.reuse import Identity, Incarnation

MAX_DEDUPED = 65_536
"""Settlements that are recognised when they come again; the store repeats at most what is unacknowledged."""

SHADOW_MARGIN_S = 5.0
"""A shadow outlives its branch's time by so much, so that it is the controller that ends it."""

_PATHS: dict[SettlementKind, tuple[FillMove, ...]] = {
    # A row that was dropped is made good by the next one of the same stage.
    SettlementKind.SHADOWED: (FillMove.FINISH,),
    SettlementKind.PROMOTED: (FillMove.FINISH, FillMove.PROMOTE),
    SettlementKind.ADOPTED: (FillMove.ADOPT,),
    SettlementKind.CONFIRMED: (FillMove.ADOPT, FillMove.CONFIRM),
    SettlementKind.CONSUMED: (FillMove.PROMOTE, FillMove.ADOPT),
    SettlementKind.DISCARDED: (FillMove.ABORT, FillMove.DISCARD),
    SettlementKind.STALE: (FillMove.ABORT, FillMove.DISCARD),
    SettlementKind.SERVED: (FillMove.ADOPT, FillMove.SERVE),
    SettlementKind.FAILED: (FillMove.ADOPT, FillMove.FAIL),
}

DEMANDED = frozenset({SettlementKind.PROMOTED, SettlementKind.ADOPTED, SettlementKind.CONSUMED})


class Filling:
    """All fills of all branches that have not settled."""

    def __init__(self, quota: Quota) -> None:
        self.reservations = Reservations(quota)
        self._fills: dict[FillId, Fill] = {}
        self._seen: OrderedDict[tuple[bytes, bytes, int, SettlementKind], None] = OrderedDict()
        self.duplicates = 0
        self.late = 0
        """Settlements that said nothing new, or came after the end."""
        self.unknown = 0
        self._active = 0

    def __len__(self) -> int:
        return len(self._fills)

    def get(self, fill_id: FillId) -> Fill | None:
        return self._fills.get(fill_id)

    def load(self) -> LoadView:
        """Of what is begun and has no engine yet, nobody knows where it will run."""
        return self.reservations.load(self._active - len(self.reservations))

    # -- beginning -----------------------------------------------------------------------------------------

    def begin(
        self, branch: Branch, selection: str, chain: tuple[str, ...], priced_at: str, out: list[Effect]
    ) -> Fill:
        fill_id = fill_id_of(branch.branch_id, selection)
        fill = Fill(fill_id, branch, selection, chain, branch.context, priced_at)
        assert fill.fill_id not in self._fills
        self._fills[fill.fill_id] = branch.fills[selection] = fill
        self._next_stage(fill, out)
        return fill

    def _next_stage(self, fill: Fill, out: list[Effect]) -> None:
        number = len(fill.stages)
        key = StageKey(fill.fill_id, number)
        fill.stages.append(StageRun(key, fill.chain[number]))
        self._active += 1
        branch = fill.branch
        out.append(
            PrepareStage(
                key=key,
                branch_id=branch.branch_id,
                template=branch.template,
                stage=fill.chain[number],
                selection=fill.selection,
                context=fill.context,
                passport=branch.passport,
            )
        )

    def prepared(self, event: StagePrepared, now: Instant, out: list[Effect]) -> None:
        found = self._stage(event.key)
        if found is None or not found[1].active:
            return
        fill, stage = found
        prepared = event.prepared
        stage.name, stage.once = prepared.name, prepared.once
        if fill.lost:
            self.ended(StageEnded(event.key, Ending.ABORTED, detail=fill.lost), now, out)
            return
        engine = self.reservations.place(
            event.key, prepared.members, prepared.body, prepared.tokens, fill.priced_at
        )
        if engine is None:
            reason = "no engine has room for one more fill" if prepared.members else "no engine is ready"
            self.ended(StageEnded(event.key, Ending.REFUSED, detail=reason), now, out)
            return
        stage.engine = engine
        out.append(self._run(fill, stage, event, now))

    def _run(self, fill: Fill, stage: StageRun, event: StagePrepared, now: Instant) -> RunStage:
        number, branch = stage.key.number, fill.branch
        before = fill.stages[number - 1].name if number else None
        left_s = max(0.0, branch.expires - now) + SHADOW_MARGIN_S
        return RunStage(
            key=stage.key,
            engine=stage.engine,
            prepared=event.prepared,
            origin=fill.origin(number),
            identity=Identity(
                tenant=branch.workflow.tenant,
                workflow_type_id=branch.workflow.workflow_type_id,
                workflow_id=branch.workflow.workflow_id,
                agent_id=branch.agent_id,
                stage=stage.stage,
            ),
            # Number 0: the node that stands under that name now.
            producers=() if before is None else (Incarnation(before, 0),),
            shadow_ttl_ms=round(left_s * 1000),
            continues=number + 1 < len(fill.chain),
            passport=branch.passport,
        )

    def began(self, event: StageBegan, now: Instant, out: list[Effect]) -> None:
        found = self._stage(event.key)
        if found is None or not found[1].active or not found[1].may(FillMove.BEGIN):
            return
        fill, stage = found
        stage.move(FillMove.BEGIN)
        stage.began, stage.generation = now, event.generation
        facts = (("stage", stage.stage), ("engine", stage.engine))
        out.append(Told(fill.branch.branch_id, Mark.STAGE_BEGAN, facts, fill.fill_id))

    def lose_engine(self, address: str, out: list[Effect]) -> None:
        """What runs there tells nobody any more how it ends."""
        self.reservations.lose(address)
        out.extend(Detach(key) for key in self.reservations.keys_at(address))

    # -- ending --------------------------------------------------------------------------------------------

    def ended(self, event: StageEnded, now: Instant, out: list[Effect]) -> Fill | None:
        """Gives back what the stage held. Returns its fill when it was news."""
        found = self._stage(event.key)
        if found is None or not found[1].active:
            return None
        fill, stage = found
        stage.active, stage.ended = False, True
        self._active -= 1
        self.reservations.release(event.key)
        stage.used_ms = event.execution_ms
        if not stage.used_ms and stage.began is not None:
            stage.used_ms = (now - stage.began) * 1000
        if event.how in (Ending.KNOWN, Ending.JOINED):
            stage.used_ms = 0.0
        if event.detail and not stage.reason:
            stage.reason = event.detail
        before = stage.state
        self._move_at_end(fill, stage, event.how)
        _time_adoption(stage, before, now)
        if stage.state is not before:
            # What its settlement has moved already was told then.
            self._tell_move(fill, stage, out)
        if self._goes_on(fill, stage, event):
            assert event.output is not None
            fill.context = fill.context.with_output(stage.stage, event.output)
            self._next_stage(fill, out)
        return fill

    @staticmethod
    def _move_at_end(fill: Fill, stage: StageRun, how: Ending) -> None:
        match how:
            case Ending.STORED:
                moves: tuple[FillMove, ...] = (FillMove.SERVE,) if stage.once else ()
            case Ending.NOT_STORED:
                moves = (FillMove.ABORT, FillMove.SERVE)
            case Ending.KNOWN | Ending.JOINED:
                moves = (FillMove.PASS,)
            case Ending.REFUSED:
                moves = (FillMove.REFUSE, FillMove.FAIL)
            case Ending.FAILED:
                moves = (FillMove.FAIL, FillMove.ABORT)
            case Ending.ABORTED:
                # An adopted stage runs on under the gateway's eyes, and one that was let go with an immune
                # fill may be what was demanded: the store tells how they end.
                told = stage.state is FillState.ADOPTED or (fill.immune and stage.state is FillState.RUNNING)
                moves = () if told else (FillMove.ABORT,)
            case _:
                assert_never(how)
        _take_first(stage, moves)

    def _goes_on(self, fill: Fill, stage: StageRun, event: StageEnded) -> bool:
        on = event.how in (Ending.STORED, Ending.KNOWN, Ending.JOINED) and event.output is not None
        left = len(fill.stages) < len(fill.chain) and stage is fill.stages[-1]
        # Whether what it was built from still stands, the store is asked with the next stage.
        return on and left and not fill.lost

    # -- loss ----------------------------------------------------------------------------------------------

    def discard(
        self, branch: Branch, fills: Iterable[Fill], reason: DiscardReason, out: list[Effect]
    ) -> None:
        """No further stage of these begins. Whether a running one was adopted meanwhile the store decides."""
        going = [fill for fill in fills if not fill.lost and not fill.is_over]
        for fill in going:
            fill.lost = reason.value
        # What was never asked of the store needs only be left alone.
        asked = [fill for fill in going if any(stage.engine for stage in fill.stages)]
        for fill in going:
            if fill not in asked:
                out.extend(Detach(stage.key) for stage in fill.stages if stage.active)
        if asked:
            keys = tuple(stage.key for fill in asked for stage in fill.stages if stage.active)
            fill_ids = tuple(fill.fill_id for fill in asked)
            out.append(DiscardRuns(branch.branch_id, fill_ids, keys, reason))

    def discarded(self, event: FillsDiscarded, out: list[Effect]) -> list[Fill]:
        touched = []
        for fill_id in event.fills:
            fill = self._fills.get(fill_id)
            if fill is None:
                continue
            touched.append(fill)
            fill.immune = fill.immune or fill_id in event.immune
            if fill_id in event.immune or not event.confirmed:
                # Which stage of it stands the settlements say, if any come.
                continue
            for stage in fill.stages:
                if stage.may(FillMove.DISCARD):
                    self._end_shadow(fill, stage, fill.lost, out)
        return touched

    def _end_shadow(self, fill: Fill, stage: StageRun, reason: str, out: list[Effect]) -> None:
        stage.reason = stage.reason or reason
        stage.move(FillMove.DISCARD)
        self._tell_move(fill, stage, out)

    def force(self, branch: Branch, out: list[Effect]) -> None:
        """The store never told how these ended: what nobody works on any more is taken to be over."""
        for fill in branch.fills.values():
            for stage in fill.stages:
                if stage.active or stage.state in FILL_ENDS:
                    continue
                stage.reason = stage.reason or "never settled"
                _take_first(stage, (FillMove.ABORT, FillMove.DISCARD, FillMove.SERVE))
                self._tell_move(fill, stage, out)

    def forget(self, branch: Branch) -> None:
        for fill in branch.fills.values():
            assert fill.is_over
            del self._fills[fill.fill_id]

    # -- settlements ---------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, now: Instant, out: list[Effect]) -> Fill | None:
        """Returns the fill when it was news of one that is known."""
        origin = settlement.origin
        row = (origin.trial_id, origin.fill_id, origin.stage, settlement.kind)
        if row in self._seen:
            self.duplicates += 1
            return None
        self._seen[row] = None
        while len(self._seen) > MAX_DEDUPED:
            self._seen.popitem(last=False)
        if settlement.kind is SettlementKind.STALE and settlement.generation is not None:
            out.append(AbortGeneration(settlement.generation, "a record that it may have read was written"))
        fill = self._fills.get(origin.fill_id)
        if fill is None or origin.stage >= len(fill.stages):
            self.unknown += 1
            if settlement.kind is SettlementKind.SHADOWED:
                # A life before this one began it: its branch is gone, and a loser does not outlive it.
                out.append(DiscardRuns(None, (origin.fill_id,), (), DiscardReason.CANCELLED))
            return None
        stage = fill.stages[origin.stage]
        before = stage.state
        self._apply(stage, settlement, now)
        _time_adoption(stage, before, now)
        if stage.state is before:
            self.late += 1
        else:
            self._tell_move(fill, stage, out)
        return fill

    def _apply(self, stage: StageRun, settlement: Settlement, now: Instant) -> None:
        if settlement.kind is SettlementKind.CONSUMED:
            _take_first(stage, _PATHS[settlement.kind])
        else:
            for move in _PATHS[settlement.kind]:
                if stage.may(move):
                    stage.move(move)
        if settlement.kind in DEMANDED:
            stage.saved_ms = settlement.execution_ms or self._overlap_ms(stage, now)
        if settlement.execution_ms and stage.ended:
            stage.used_ms = stage.used_ms or settlement.execution_ms
        if stage.state in FILL_ENDS and settlement.reason and not stage.reason:
            stage.reason = settlement.reason

    @staticmethod
    def _overlap_ms(stage: StageRun, now: Instant) -> float:
        """What of an adopted stage had run before its demand came."""
        return 0.0 if stage.began is None else (now - stage.began) * 1000

    # -- telling and checking ------------------------------------------------------------------------------

    def _tell_move(self, fill: Fill, stage: StageRun, out: list[Effect]) -> None:
        facts: list[Fact] = [
            ("stage", stage.stage),
            ("state", stage.state.value),
            ("used_ms", stage.used_ms),
            ("saved_ms", stage.saved_ms),
        ]
        if stage.reason:
            facts.append(("reason", stage.reason))
        out.append(Told(fill.branch.branch_id, Mark.STAGE_MOVED, tuple(facts), fill.fill_id))

    def over_of(self, fill: Fill, selected: bool | None) -> FillOver:
        return FillOver(
            trial_id=fill.branch.trial_id,
            fill_id=fill.fill_id,
            coordinate=fill.branch.coordinate,
            stages=tuple(map(_stage_over, fill.stages)),
            selected=selected,
            consumed=fill.consumed,
            saved_ms=fill.saved_ms,
            ran=any(stage.began is not None for stage in fill.stages),
        )

    def tell_end(self, fill: Fill, out: list[Effect]) -> None:
        if fill.told or not fill.is_over:
            return
        fill.told = True
        facts: tuple[Fact, ...] = (
            ("selection", fill.selection),
            ("state", fill.state),
            ("consumed", fill.consumed),
            ("used_ms", fill.used_ms),
            ("saved_ms", fill.saved_ms),
            ("discarded_ms", fill.discarded_ms),
        )
        out.append(Told(fill.branch.branch_id, Mark.FILL_ENDED, facts, fill.fill_id))

    def _stage(self, key: StageKey) -> tuple[Fill, StageRun] | None:
        fill = self._fills.get(key.fill_id)
        if fill is None or key.number >= len(fill.stages):
            return None
        return fill, fill.stages[key.number]

    def validate_state(self) -> None:
        self.reservations.validate_state()
        assert len(self._seen) <= MAX_DEDUPED
        held = active = 0
        for fill_id, fill in self._fills.items():
            assert fill.fill_id == fill_id and fill.branch.fills[fill.selection] is fill
            assert 1 <= len(fill.stages) <= len(fill.chain)
            for number, stage in enumerate(fill.stages):
                assert stage.key == StageKey(fill_id, number)
                # Stages run one after another: only the last is worked on.
                assert not stage.active or number == len(fill.stages) - 1
                assert stage.active != stage.ended
                active += stage.active
                if self.reservations.holds(stage.key):
                    held += 1
                    assert stage.active
        assert held == len(self.reservations), "a reservation of no stage"
        assert active == self._active


def _take_first(stage: StageRun, moves: Sequence[FillMove]) -> None:
    for move in moves:
        if stage.may(move):
            stage.move(move)
            return


def _time_adoption(stage: StageRun, before: FillState, now: Instant) -> None:
    if stage.state is before:
        return
    if stage.state is FillState.ADOPTED:
        stage.adopted = now
    elif before is FillState.ADOPTED:
        stage.adoption_over = now


def _stage_over(stage: StageRun) -> StageUse:
    wait_ms = None
    if stage.adopted is not None and stage.adoption_over is not None:
        wait_ms = (stage.adoption_over - stage.adopted) * 1000
    return StageUse(stage.stage, stage.used_ms, wait_ms, stage.state is FillState.FAILED)


def fill_id_of(branch_id: BranchId, selection: str) -> FillId:
    text = selection.encode("utf-8", "surrogatepass")
    return FillId(hashlib.sha256(b"fill\0" + branch_id + text).digest()[:16])
