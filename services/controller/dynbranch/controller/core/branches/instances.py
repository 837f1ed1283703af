"""Open branches, from their opening to their settlement: candidates, the gate, selection and time.

What each step costs does not depend on how many other branches there are: resolving a branch costs its
candidates, settling one its fills.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dynbranch.controller.core.branches.admission import Admission, Asked, Offered, Verdict
from dynbranch.controller.core.branches.experience import BranchOver, SelectionTold, SetupSpent
from dynbranch.controller.core.branches.filling import Filling, fill_id_of
from dynbranch.controller.core.branches.lifecycle import BranchMove, BranchState
from dynbranch.controller.core.branches.messages import (
    CandidatesProposed,
    Effect,
    Fact,
    Learn,
    Mark,
    Propose,
    Told,
    Unlearn,
)
from dynbranch.controller.core.branches.records import Branch, CandidateRecord, Fill
from dynbranch.controller.core.branches.workflows import Arrived, Workflow
from dynbranch.controller.core.predictors.port import Coordinate
from dynbranch.domain.fills import DiscardReason
from dynbranch.domain.ids import BranchId, DemandId, Instant, Name, TrialId, UnixMs
from dynbranch.domain.template import Branching, DecisionPoint, Speculable, StageKind, Window

RECORDED = frozenset({"hit", "promoted"})
"""Outcomes of a decision that stood already: nobody waited for it."""


MOST_SPOKEN = 3
"""Names that a branch hears of while its decode speaks: each may be a fill beside its guesses, and gateways
tell no more of one answer."""


class Evidence(Enum):
    """What an offer rests on beside its rank. The values begin its reason."""

    NONE = ""
    SPOKEN = "spoken of: "
    SEEN = "seen: "


@dataclass(frozen=True, slots=True)
class Bounds:
    workflows: int = 10_000
    workflow_ttl_s: float = 900.0
    """A workflow that says nothing for so long is over: people come back after a quarter of an hour, and then
    begin anew."""
    branches: int = 4096
    """Open or unsettled. Each is a few kilobytes and its context."""
    history: int = 1024
    """Settled ones that can still be inspected."""
    hold_s: float = 0.005
    """A recorded decision is told within so long; until then no fill begins."""
    linger_s: float = 30.0
    """How long after its time a branch waits for settlements that do not come."""


class OpenBranches:
    """Every branch that has not settled, and some that have."""

    def __init__(self, admission: Admission, filling: Filling, bounds: Bounds) -> None:
        self._admission = admission
        self._filling = filling
        self._bounds = bounds
        self._branches: dict[BranchId, Branch] = {}
        self._settled: OrderedDict[BranchId, Branch] = OrderedDict()
        self._due: list[tuple[Instant, int, BranchId]] = []
        self._next_due = 0
        self.opened = 0

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def unresolved(self) -> int:
        return sum(branch.unresolved for branch in self._branches.values())

    @property
    def is_full(self) -> bool:
        return len(self._branches) >= self._bounds.branches

    def unsettled(self, branch_id: BranchId | None) -> Branch | None:
        return None if branch_id is None else self._branches.get(branch_id)

    def get(self, branch_id: BranchId) -> Branch | None:
        return self._branches.get(branch_id) or self._settled.get(branch_id)

    def listed(self, workflow_id: str, at_most: int) -> list[Branch]:
        """Newest first."""
        known = [*self._settled.values(), *self._branches.values()]
        found = [one for one in known if not workflow_id or one.workflow.workflow_id == workflow_id]
        found.sort(key=lambda one: -one.number)
        return found[:at_most]

    # -- opening -------------------------------------------------------------------------------------------

    def open(
        self,
        workflow: Workflow,
        point: DecisionPoint,
        demand_id: DemandId,
        arrived: Arrived,
        at: UnixMs,
        now: Instant,
    ) -> Branch:
        coordinate = Coordinate(workflow.key.tenant, workflow.key.workflow_type_id, point.name)
        branch_id = branch_id_of(workflow, arrived.agent_id, point.name, demand_id)
        trial_id = TrialId(hashlib.sha256(b"trial\0" + branch_id).digest()[:16])
        asked = Asked(branch_id, trial_id, coordinate, point.window, point.branching, now, now)
        branch = Branch(
            branch_id=branch_id,
            trial_id=trial_id,
            workflow=workflow.key,
            agent_id=arrived.agent_id,
            template=workflow.template,
            point=point,
            passport=workflow.passport,
            context=workflow.context(),
            opened=now,
            opened_at=at,
            expires=Instant(now + point.expires_s),
            decision=self._admission.open(asked, self._filling.load()),
            number=self.opened,
        )
        self._branches[branch_id] = branch
        workflow.branches = [known for known in workflow.branches if known in self._branches]
        workflow.branches.append(branch_id)
        self.opened += 1
        self._wake(branch.expires, branch_id)
        return branch

    def ask(self, workflow: Workflow, branch: Branch, not_before: Instant, out: list[Effect]) -> None:
        facts: tuple[Fact, ...] = (
            ("decision_point", branch.point.name),
            ("window", branch.point.window.value),
        )
        out.append(Told(branch.branch_id, Mark.OPENED, facts))
        if not branch.decision.opens:
            reason: tuple[Fact, ...] = (("reason", branch.decision.reason), *branch.decision.numbers)
            out.append(Told(branch.branch_id, Mark.REFUSED, reason))
            return
        out.append(
            Propose(
                branch_id=branch.branch_id,
                workflow=branch.workflow,
                template=branch.template,
                point=branch.point,
                context=branch.context,
                trail=workflow.trail(),
                not_before=not_before,
                sharing_group=branch.passport.sharing_group,
            )
        )

    # -- candidates ----------------------------------------------------------------------------------------

    def proposed(self, event: CandidatesProposed, now: Instant, out: list[Effect]) -> None:
        branch = self.get(event.branch_id)
        if branch is None:
            out.append(Unlearn(event.branch_id))
            return
        if branch.proposed:
            return
        branch.proposed = True
        branch.spent_ms, branch.answers = event.spent_ms, event.answers
        self._admission.hear(SetupSpent(branch.trial_id, event.spent_ms), now)
        fresh = [one for one in dict.fromkeys(event.ranked) if branch.known(one) is None]
        for selection in fresh:
            branch.candidates.append(CandidateRecord(selection, len(branch.candidates)))
        facts: tuple[Fact, ...] = (
            ("candidates", float(len(branch.candidates))),
            ("spent_ms", event.spent_ms),
        )
        out.append(Told(branch.branch_id, Mark.PROPOSED, facts))
        if branch.state is BranchState.OPENING:
            branch.move(BranchMove.PROPOSE)
            self._admit(branch, fresh, now, out, Evidence.NONE)
            return
        for record in branch.candidates:
            record.reason = record.reason or "the branch had resolved already"
        self._teach(branch, now, out)
        self.settle_if_over(branch, now, out)

    def see(self, branch: Branch, chosen: Sequence[str], now: Instant, out: list[Effect]) -> None:
        """Stream-first: what shows in the decode is no guess any more, and one more fill may be worth it."""
        if not branch.decision.opens or not branch.unresolved:
            return
        fresh = []
        for selection in dict.fromkeys(chosen):
            record = _known(branch, selection)
            if not record.seen:
                record.seen = True
                if selection not in branch.fills:
                    fresh.append(selection)
        if fresh:
            out.append(Told(branch.branch_id, Mark.SEEN, (("selections", ", ".join(fresh)),)))
            self._admit(branch, fresh, now, out, Evidence.SEEN)

    def hear_of(self, branch: Branch, names: Sequence[str], now: Instant, out: list[Effect]) -> None:
        """The decode speaks of these, and has not chosen: each is priced once more, as one that is spoken
        of. What was refused as a guess may run then."""
        if not branch.decision.opens or not branch.unresolved:
            return
        used = _used(branch) if branch.point.candidates.unused else frozenset()
        spoken = sum(record.spoken for record in branch.candidates)
        fresh = []
        for selection in dict.fromkeys(names):
            record = branch.known(selection)
            if spoken >= MOST_SPOKEN or selection in used or (record and (record.seen or record.spoken)):
                continue
            spoken += 1
            _known(branch, selection).spoken = True
            if selection not in branch.fills:
                fresh.append(selection)
        if fresh:
            out.append(Told(branch.branch_id, Mark.SPOKEN, (("selections", ", ".join(fresh)),)))
            self._admit(branch, fresh, now, out, Evidence.SPOKEN)

    def _admit(
        self,
        branch: Branch,
        selections: Iterable[str],
        now: Instant,
        out: list[Effect],
        evidence: Evidence,
    ) -> None:
        chain = chain_of(branch)
        only_tools = all(branch.template.stage(name).kind is StageKind.TOOL for name in chain)
        offered = [
            Offered(
                selection,
                record.rank,
                fill_id_of(branch.branch_id, selection),
                chain,
                seen=evidence is Evidence.SEEN,
                only_tools=only_tools,
                spoken=evidence is Evidence.SPOKEN,
            )
            for selection in selections
            if (record := branch.known(selection)) is not None
        ]
        if not chain:
            verdicts = tuple(Verdict(one.selection, False, "not speculable") for one in offered)
        else:
            guesses = sum(_was_guessed(branch, selection) for selection in branch.fills)
            asked = Asked(
                branch.branch_id,
                branch.trial_id,
                branch.coordinate,
                branch.point.window,
                branch.point.branching,
                branch.opened,
                now,
                admitted=guesses,
            )
            verdicts = self._admission.admit(asked, offered, self._filling.load())
        for verdict in verdicts:
            self._price(branch, verdict, chain, evidence, out)

    def _price(
        self,
        branch: Branch,
        verdict: Verdict,
        chain: tuple[str, ...],
        evidence: Evidence,
        out: list[Effect],
    ) -> None:
        record = branch.known(verdict.selection)
        assert record is not None, "a verdict of no candidate"
        record.admitted, record.numbers = verdict.admitted, verdict.numbers
        record.reason = evidence.value + verdict.reason
        record.guessed = evidence is Evidence.NONE
        facts: tuple[Fact, ...] = (
            ("selection", verdict.selection),
            ("admitted", verdict.admitted),
            ("reason", record.reason),
            *verdict.numbers,
        )
        out.append(Told(branch.branch_id, Mark.PRICED, facts))
        if verdict.admitted and verdict.selection not in branch.fills:
            self._filling.begin(branch, verdict.selection, chain, verdict.engine, out)

    # -- resolution ----------------------------------------------------------------------------------------

    def resolve(
        self, branch: Branch, chosen: tuple[str, ...], how: str, now: Instant, out: list[Effect]
    ) -> None:
        branch.move(BranchMove.RESOLVE)
        branch.selections, branch.resolved, branch.resolved_by = chosen, now, how
        for record in branch.candidates:
            record.selected = record.selection in chosen
        facts: tuple[Fact, ...] = (
            ("selections", ", ".join(chosen)),
            ("by", how),
            ("after_ms", (now - branch.opened) * 1000),
        )
        out.append(Told(branch.branch_id, Mark.RESOLVED, facts))
        if branch.point.branching is Branching.EXCLUSIVE:
            self._filling.discard(branch, _losers(branch, chosen), DiscardReason.LOST, out)
        recorded = how in RECORDED and branch.point.window is Window.DECODE and not branch.fills
        window_ms = (now - branch.opened) * 1000
        self._admission.hear(BranchOver(branch.trial_id, chosen, window_ms, recorded), now)
        if branch.proposed:
            self._teach(branch, now, out)
        self.settle_if_over(branch, now, out)

    def _teach(self, branch: Branch, now: Instant, out: list[Effect]) -> None:
        if branch.selections is not None:
            ranks: list[tuple[int | None, bool]] = []
            for record in branch.candidates:
                record.selected = record.selection in branch.selections
                ranks += [(record.rank, record.selected)] * record.predicted
                ranks += [(None, record.selected)] * record.seen
            spoken = tuple(record.selected or False for record in branch.candidates if record.spoken)
            self._admission.hear(SelectionTold(branch.coordinate, tuple(ranks), spoken), now)
            out.append(Learn(branch.branch_id, branch.selections))
        else:
            out.append(Unlearn(branch.branch_id))

    def blur(self, branch: Branch, how: str, now: Instant, out: list[Effect]) -> None:
        branch.move(BranchMove.BLUR)
        branch.resolved, branch.resolved_by = now, how
        out.append(Told(branch.branch_id, Mark.AMBIGUOUS, (("by", how),)))
        self._admission.hear(BranchOver(branch.trial_id), now)
        self._drop_all(branch, DiscardReason.LOST, now, out)

    def expire(
        self, branch: Branch, why: str, reason: DiscardReason, now: Instant, out: list[Effect]
    ) -> None:
        if branch.unresolved:
            branch.move(BranchMove.EXPIRE)
            branch.resolved, branch.resolved_by = now, why
            out.append(Told(branch.branch_id, Mark.EXPIRED, (("by", why),)))
            self._admission.hear(BranchOver(branch.trial_id), now)
            if branch.proposed:
                out.append(Unlearn(branch.branch_id))
        self._filling.discard(branch, branch.fills.values(), reason, out)
        self.settle_if_over(branch, now, out)

    def _drop_all(self, branch: Branch, reason: DiscardReason, now: Instant, out: list[Effect]) -> None:
        if branch.proposed:
            out.append(Unlearn(branch.branch_id))
        self._filling.discard(branch, branch.fills.values(), reason, out)
        self.settle_if_over(branch, now, out)

    # -- settlement ----------------------------------------------------------------------------------------

    def look_at(self, fill: Fill | None, now: Instant, out: list[Effect]) -> None:
        """Something of this fill changed."""
        if fill is None:
            return
        self._filling.tell_end(fill, out)
        self.settle_if_over(fill.branch, now, out)

    def settle_if_over(self, branch: Branch, now: Instant, out: list[Effect]) -> None:
        if branch.unresolved or branch.state is BranchState.SETTLED:
            return
        over = True
        for fill in branch.fills.values():
            if fill.is_over:
                self._filling.tell_end(fill, out)
                self._learn(branch, fill, now)
            else:
                over = False
        if not over:
            return
        branch.move(BranchMove.SETTLE)
        branch.settled = now
        self._filling.forget(branch)
        branch.let_go()
        del self._branches[branch.branch_id]
        self._settled[branch.branch_id] = branch
        while len(self._settled) > self._bounds.history:
            self._settled.popitem(last=False)
        out.append(Told(branch.branch_id, Mark.SETTLED, (("consumed", float(branch.consumed)),)))

    def _learn(self, branch: Branch, fill: Fill, now: Instant) -> None:
        """Once it is over and its branch has resolved."""
        if fill.learned or not fill.is_over:
            return
        fill.learned = True
        record = branch.known(fill.selection)
        selected = None if record is None or branch.selections is None else record.selected
        self._admission.hear(self._filling.over_of(fill, selected), now)

    # -- time ----------------------------------------------------------------------------------------------

    def _wake(self, at: Instant, branch_id: BranchId) -> None:
        heapq.heappush(self._due, (at, self._next_due, branch_id))
        self._next_due += 1

    def pass_time(self, now: Instant, out: list[Effect]) -> None:
        while self._due and self._due[0][0] <= now:
            at, _, branch_id = heapq.heappop(self._due)
            branch = self._branches.get(branch_id)
            if branch is None:
                continue
            if at < branch.expires + self._bounds.linger_s:
                self._wake(Instant(branch.expires + self._bounds.linger_s), branch_id)
                self.expire(branch, "time", DiscardReason.EXPIRED, now, out)
                continue
            self._filling.force(branch, out)
            self.settle_if_over(branch, now, out)
            if branch.branch_id in self._branches:
                # A stage has not ended yet; the shell's deadlines see to it.
                self._wake(Instant(now + self._bounds.linger_s), branch_id)

    def validate_state(self) -> None:
        assert len(self._branches) <= self._bounds.branches
        assert len(self._settled) <= self._bounds.history
        fills = 0
        for branch_id, branch in self._branches.items():
            assert branch.branch_id == branch_id and branch.state is not BranchState.SETTLED
            fills += len(branch.fills)
            assert all(self._filling.get(fill.fill_id) is fill for fill in branch.fills.values())
            if branch.state is BranchState.RESOLVED:
                assert branch.selections is not None
                exclusive = branch.point.branching is Branching.EXCLUSIVE
                for fill in branch.fills.values():
                    won = fill.selection in branch.selections
                    assert won or not exclusive or fill.lost or fill.spared or fill.is_over
            elif not branch.unresolved:
                assert all(fill.lost or fill.is_over for fill in branch.fills.values())
        assert fills == len(self._filling)
        for branch in self._settled.values():
            assert branch.state is BranchState.SETTLED
            assert all(fill.is_over for fill in branch.fills.values())


def _known(branch: Branch, selection: str) -> CandidateRecord:
    """What the decode tells of is a candidate from now on."""
    record = branch.known(selection)
    if record is None:
        record = CandidateRecord(selection, len(branch.candidates), predicted=False)
        branch.candidates.append(record)
    return record


def _was_guessed(branch: Branch, selection: str) -> bool:
    record = branch.known(selection)
    return record is None or record.guessed


def _used(branch: Branch) -> frozenset[str]:
    """What this workflow has selected here before."""
    made = branch.context.selections.get(branch.point.name, ())
    return frozenset(name for selection in made for name in selection)


def _losers(branch: Branch, chosen: tuple[str, ...]) -> list[Fill]:
    """What no selection names. Two selections may lead to one request, which one fill runs for both: that
    one stays."""
    won = [fill for selection, fill in branch.fills.items() if selection in chosen and not fill.lost]
    wanted = frozenset[Name]().union(*(fill.leaned_on() for fill in won))
    losers = []
    for selection, fill in branch.fills.items():
        if selection in chosen:
            continue
        left = [stage for stage in fill.stages if not stage.is_over]
        if left and all(stage.name in wanted for stage in left):
            fill.spare()
        else:
            losers.append(fill)
    return losers


def chain_of(branch: Branch) -> tuple[str, ...]:
    """The stages that may run ahead: up to the first that may not."""
    chain = []
    for name in branch.point.then:
        if branch.template.stage(name).speculable is Speculable.NO:
            break
        chain.append(name)
    return tuple(chain)


def branch_id_of(workflow: Workflow, agent_id: str, point: str, demand_id: DemandId) -> BranchId:
    """H(tenant, workflow, agent, coordinate, arrival)."""
    key = workflow.key
    parts = (key.tenant, key.workflow_type_id, key.workflow_id, agent_id, point)
    texts = [part.encode("utf-8", "surrogatepass") for part in parts]
    digest = hashlib.sha256(b"branch/1")
    for part in (*texts, demand_id):
        digest.update(len(part).to_bytes(8, "big") + part)
    return BranchId(digest.digest()[:16])
