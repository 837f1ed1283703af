"""The life of a request: the table, and what it promises in any order of events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from dynbranch.domain.engine import Aborted, Completed, Failed, ModelDescription
from dynbranch.domain.ids import (
    BranchId,
    Digest,
    FillId,
    GenerationId,
    LeaseId,
    Name,
    TrialId,
    UnixMs,
    Version,
)
from dynbranch.domain.reuse import (
    PURE,
    FillOrigin,
    Fingerprint,
    GenerationRef,
    Hit,
    Incarnation,
    Lease,
    Level,
    Live,
    Miss,
)
from dynbranch.gateway.core import life
from dynbranch.gateway.core.life import FINAL, TABLE, IllegalMove, Plan, RequestLife, State, diagram
from dynbranch.gateway.core.pool import Member, Pool
from hypothesis import given, settings
from hypothesis import strategies as st

NAME = Name(b"n" * 32)
MODEL = ModelDescription("m", Fingerprint())
HIT = Hit(Incarnation(NAME, 1), b"", Level.GREEDY, 10.0, UnixMs(0))
ENGINE_DIED = Failed(0, b"", may_retry=True)
ENGINE_SAID_NO = Failed(400, b'{"error":{}}', may_retry=False)


ORIGIN = FillOrigin(BranchId(b"b" * 16), TrialId(b"t" * 16), FillId(b"f" * 16))
FILL = GenerationRef(GenerationId(b"x" * 16), "z:9")


def pool(*addresses: str) -> Pool:
    return Pool(MODEL, Digest(b"f"), tuple(Member(address, 0) for address in addresses))


def new_life(
    *addresses: str,
    demands: bool = True,
    repeatable: bool = True,
    aside: bool = False,
    once: bool = False,
) -> RequestLife:
    numbers = count(1)
    return RequestLife(
        Plan(pool(*addresses), demands, repeatable, aside, once),
        lambda: GenerationId(next(numbers).to_bytes(16, "big")),
    )


def lease_for(ask: life.Ask, number: int = 1) -> Lease:
    return Lease(LeaseId(number.to_bytes(16, "big")), NAME, ask.intended, Version(1, 0), PURE)


def only(effects: tuple[life.Effect, ...]) -> life.Effect:
    assert len(effects) == 1, effects
    return effects[0]


def begun(subject: RequestLife) -> life.Ask:
    ask = only(subject.handle(life.Begin()))
    assert isinstance(ask, life.Ask)
    return ask


def test_a_hit_is_served() -> None:
    subject = new_life("a:1")
    begun(subject)
    assert only(subject.handle(life.Answered(HIT))) == life.ServeRecorded(HIT)
    assert subject.state is State.SERVED


def test_a_miss_executes_where_the_demand_said_it_would() -> None:
    subject = new_life("b:1", "a:1")
    ask = begun(subject)
    assert ask.intended.agent_address == "a:1"
    lease = lease_for(ask)
    assert only(subject.handle(life.Answered(Miss(lease)))) == life.Execute(ask.intended, lease)
    assert subject.handle(life.Heard()) == ()
    assert subject.handle(life.Shown()) == ()
    assert only(subject.handle(life.Ended(Completed("committed", 1.0)))) == life.Finish(
        Completed("committed", 1.0)
    )


def test_a_request_that_is_not_reused_never_asks_the_store() -> None:
    effect = only(new_life("a:1", demands=False).handle(life.Begin()))
    assert isinstance(effect, life.Execute) and effect.lease is None


def test_without_an_answer_it_executes_under_the_announced_generation() -> None:
    subject = new_life("a:1")
    ask = begun(subject)
    assert only(subject.handle(life.Unanswered("slow"))) == life.Execute(ask.intended, None)


def test_a_live_generation_that_can_not_be_followed_is_excluded_and_demanded_again() -> None:
    subject = new_life("a:1")
    begun(subject)
    other = GenerationRef(GenerationId(b"x" * 16), "z:9")
    assert only(subject.handle(life.Answered(Live(other)))) == life.Attach(other)
    again = only(subject.handle(life.Lost("not found", ran=False)))
    assert isinstance(again, life.Ask)
    assert again.exclude == {other.generation_id}


def test_an_agent_that_does_not_answer_is_not_tried_by_its_followers() -> None:
    subject = new_life("a:1", "b:1")
    assert begun(subject).intended.agent_address == "a:1"
    subject.handle(life.Answered(Live(GenerationRef(GenerationId(b"x" * 16), "a:1"))))
    again = only(subject.handle(life.Lost("silent", ran=True, unreachable=True)))
    assert isinstance(again, life.Ask) and again.intended.agent_address == "b:1"


def test_after_three_failed_attaches_it_executes_without_store() -> None:
    subject = new_life("a:1")
    begun(subject)
    for number in range(life.MAX_FAILED_ATTACHES):
        ref = GenerationRef(GenerationId(bytes([number]) * 16), "z:9")
        subject.handle(life.Answered(Live(ref)))
        effect = only(subject.handle(life.Lost("not found", ran=False)))
    assert isinstance(effect, life.Execute) and effect.lease is None


def test_an_agent_lost_before_the_first_item_is_replaced_and_its_lease_released() -> None:
    subject = new_life("a:1", "b:1")
    ask = begun(subject)
    lease = lease_for(ask)
    subject.handle(life.Answered(Miss(lease)))
    released, again = subject.handle(life.Lost("gone", ran=True))
    assert released == life.Release(lease)
    assert isinstance(again, life.Ask)
    assert again.intended.agent_address == "b:1"
    assert again.exclude == {ask.intended.generation_id}


@pytest.mark.parametrize(
    ("aside", "expected"), [(True, life.StandAside), (False, life.Refuse)], ids=["bypass", "503"]
)
def test_when_no_agent_is_left_it_stands_aside_or_refuses(aside: bool, expected: type) -> None:
    subject = new_life("a:1", demands=False, aside=aside)
    subject.handle(life.Begin())
    assert isinstance(only(subject.handle(life.Lost("gone", ran=True))), expected)


def test_the_engines_own_refusal_is_passed_on_and_not_tried_elsewhere() -> None:
    subject = new_life("a:1", "b:1", aside=True)
    ask = begun(subject)
    subject.handle(life.Answered(Miss(lease_for(ask))))
    subject.handle(life.Heard())
    assert only(subject.handle(life.Ended(ENGINE_SAID_NO))) == life.Refuse(
        "the engine failed", ENGINE_SAID_NO
    )


def test_a_call_that_may_have_happened_is_not_made_twice() -> None:
    subject = new_life("a:1", "b:1", demands=False, repeatable=False, aside=True)
    subject.handle(life.Begin())
    assert isinstance(only(subject.handle(life.Lost("gone", ran=True))), life.Refuse)


@pytest.mark.parametrize("end", [ENGINE_DIED, Aborted("operator")])
def test_a_call_that_failed_in_an_unknown_way_is_not_made_twice(end: Failed | Aborted) -> None:
    subject = new_life("a:1", "b:1", demands=False, repeatable=False, aside=True)
    subject.handle(life.Begin())
    subject.handle(life.Heard())
    assert isinstance(only(subject.handle(life.Ended(end))), life.Refuse)


def test_a_call_that_surely_did_not_happen_is_made_elsewhere() -> None:
    subject = new_life("a:1", "b:1", demands=False, repeatable=False)
    subject.handle(life.Begin())
    effect = only(subject.handle(life.Lost("draining", ran=False)))
    assert isinstance(effect, life.Execute) and effect.generation.agent_address == "b:1"


def test_after_a_part_was_shown_nothing_is_tried_again() -> None:
    for event in (life.Lost("gone", ran=True), life.Ended(ENGINE_DIED), life.Ended(Aborted("operator"))):
        subject = new_life("a:1", "b:1", demands=False, aside=True)
        for step in (life.Begin(), life.Heard(), life.Shown()):
            subject.handle(step)
        assert isinstance(only(subject.handle(event)), life.BreakOff)


def test_a_client_that_leaves_during_the_demand_leaves_no_lease() -> None:
    subject = new_life("a:1")
    ask = begun(subject)
    assert subject.handle(life.Left()) == ()
    lease = lease_for(ask)
    assert only(subject.handle(life.Answered(Miss(lease)))) == life.Release(lease)
    assert subject.state is State.LEFT


def test_a_client_that_leaves_before_the_agent_is_heard_has_its_lease_settled() -> None:
    subject = new_life("a:1")
    ask = begun(subject)
    lease = lease_for(ask)
    subject.handle(life.Answered(Miss(lease)))
    assert only(subject.handle(life.Left())) == life.Settle(lease)


def test_a_recorded_result_is_served_when_no_agent_is_ready() -> None:
    subject = new_life(aside=False)
    ask = begun(subject)
    assert not ask.may_execute
    assert only(subject.handle(life.Answered(HIT))) == life.ServeRecorded(HIT)


def test_no_agent_and_no_record_is_refused() -> None:
    subject = new_life()
    begun(subject)
    assert isinstance(only(subject.handle(life.Answered(Miss(None)))), life.Refuse)


def adopting(*addresses: str, once: bool = False) -> RequestLife:
    subject = new_life(*addresses, once=once)
    begun(subject)
    assert only(subject.handle(life.Answered(Live(FILL, ORIGIN)))) == life.Attach(FILL, adopts=True)
    return subject


@pytest.mark.promise("C2.adoption")
@pytest.mark.parametrize("heard", [False, True])
def test_an_adopted_fill_that_stands_still_is_left_for_an_execution(heard: bool) -> None:
    subject = adopting("a:1")
    if heard:
        subject.handle(life.Heard())
    assert subject.may_abandon
    again = only(subject.handle(life.Stalled()))
    assert isinstance(again, life.Ask) and again.exclude == {FILL.generation_id}
    lease = lease_for(again)
    assert only(subject.handle(life.Answered(Miss(lease)))) == life.Execute(again.intended, lease)
    assert not subject.adopted


def test_what_nobody_else_can_execute_is_followed_however_long_it_takes() -> None:
    assert not adopting().may_abandon


def test_another_requests_generation_is_not_left_for_being_slow() -> None:
    subject = new_life("a:1")
    begun(subject)
    subject.handle(life.Answered(Live(FILL)))
    assert not subject.may_abandon
    with pytest.raises(AssertionError):
        subject.handle(life.Stalled())


@pytest.mark.parametrize("end", [ENGINE_DIED, ENGINE_SAID_NO, Aborted("gave_way")])
def test_an_adopted_fill_that_fails_costs_time_and_nothing_else(end: Failed | Aborted) -> None:
    subject = adopting("a:1")
    subject.handle(life.Heard())
    assert isinstance(only(subject.handle(life.Ended(end))), life.Ask)


@pytest.mark.promise("C2.once")
@pytest.mark.parametrize("end", [ENGINE_DIED, ENGINE_SAID_NO])
def test_a_sampled_fill_is_delivered_whatever_it_is(end: Failed) -> None:
    subject = adopting("a:1", once=True)
    assert not subject.may_abandon
    subject.handle(life.Heard())
    assert only(subject.handle(life.Ended(end))) == life.Refuse("the engine failed", end)


@pytest.mark.promise("C2.once")
def test_a_sampled_fill_whose_agent_is_lost_is_no_draw_that_could_be_delivered() -> None:
    subject = adopting("a:1", once=True)
    assert isinstance(only(subject.handle(life.Lost("gone", ran=True))), life.Ask)


def test_a_pair_that_the_table_does_not_have_is_a_bug() -> None:
    with pytest.raises(IllegalMove):
        new_life("a:1").handle(life.Shown())


def test_the_diagram_names_every_state_and_the_readme_shows_it() -> None:
    text = diagram()
    assert all(state.value in text for state in State)
    readme = Path(__file__).parents[3] / "services" / "gateway" / "README.md"
    assert text in readme.read_text(encoding="utf-8")


def moves() -> Iterator[tuple[State, type]]:
    yield from TABLE


OUTCOMES = st.sampled_from(["hit", "live", "adopted", "miss", "bare miss"])
ENDS = st.sampled_from([Completed("committed", 1.0), ENGINE_DIED, ENGINE_SAID_NO, Aborted("operator")])
LOSSES = st.builds(life.Lost, st.just("gone"), st.booleans())


class Walk:
    """A random but legal shell: it may only send what the last effect allows."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.draw = data.draw
        self.held: set[bytes] = set()
        self.numbers = count(100)
        self.effects = 0
        self.terminal: list[life.Effect] = []

    def run(self, subject: RequestLife) -> None:
        pending: life.Effect | None = self.take(subject, life.Begin())
        while not subject.final and self.effects < 100:
            if self.draw(st.integers(0, 9)) == 0:
                pending = self.leave(subject, pending)
                continue
            pending = self.take(subject, self.event(subject, pending))
        assert subject.final, "a request ends"

    def leave(self, subject: RequestLife, pending: life.Effect | None) -> None:
        self.take(subject, life.Left())
        if subject.state is State.LEAVING:
            assert isinstance(pending, life.Ask)
            self.take(subject, self.answer(pending))

    def event(self, subject: RequestLife, pending: life.Effect | None) -> life.Event:
        match subject.state:
            case State.DEMANDING:
                assert isinstance(pending, life.Ask)
                return self.answer(pending)
            case State.ATTACHING | State.FOLLOWING if subject.may_abandon and self.draw(st.booleans()):
                return life.Stalled()
            case State.ATTACHING | State.EXECUTING:
                return self.draw(st.one_of(st.just(life.Heard()), LOSSES))
            case State.FOLLOWING:
                return self.draw(st.one_of(st.just(life.Shown()), LOSSES, st.builds(life.Ended, ENDS)))
            case _:
                return self.draw(st.one_of(LOSSES, st.builds(life.Ended, ENDS)))

    def answer(self, ask: life.Ask) -> life.Event:
        match self.draw(st.one_of(OUTCOMES, st.just("none"))):
            case "hit":
                return life.Answered(HIT)
            case "live" | "adopted" as kind if ask.may_execute:
                running = GenerationRef(GenerationId(next(self.numbers).to_bytes(16, "big")), "z:9")
                return life.Answered(Live(running, ORIGIN if kind == "adopted" else None))
            case "miss" if ask.may_execute:
                lease = lease_for(ask, next(self.numbers))
                self.held.add(lease.lease_id)
                return life.Answered(Miss(lease))
            case "none":
                return life.Unanswered("slow")
            case _:
                return life.Answered(Miss(None))

    def take(self, subject: RequestLife, event: life.Event) -> life.Effect | None:
        effects = subject.handle(event)
        self.effects += 1
        if isinstance(event, life.Heard) and subject.lease is not None:
            # The agent has the order: the lease is the agent's now, whatever becomes of this client.
            self.held.discard(subject.lease.lease_id)
        last = None
        for effect in effects:
            match effect:
                case life.Release(lease) | life.Settle(lease):
                    self.held.discard(lease.lease_id)
                case _:
                    last = effect
        if subject.final and last is not None:
            self.terminal.append(last)
        return last


@pytest.mark.promise("I4")
@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(0, 3), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_every_life_ends_once_and_leaves_no_lease(
    data: st.DataObject, agents: int, demands: bool, repeatable: bool, aside: bool, once: bool
) -> None:
    addresses = [f"a{n}:1" for n in range(agents)]
    subject = new_life(*addresses, demands=demands, repeatable=repeatable, aside=aside, once=once)
    walk = Walk(data)
    walk.run(subject)
    assert not walk.held
    assert len(walk.terminal) == (subject.state is not State.LEFT)
    for state_event in moves():
        assert state_event[0] not in FINAL or state_event[1] is life.Left
