from __future__ import annotations

import pytest
from dynbranch.controller.core.journal import Journal, Limits
from dynbranch.controller.core.numbering import MAX_GAPS, Numbering
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.controller.shell import ControllerShell
from dynbranch.domain.events import ArrivalSeen, ControllerSummary, EventBatch, GatewayEvent, OutcomeSeen
from dynbranch.domain.ids import DemandId, Instant, UnixMs
from dynbranch.domain.reuse import Identity
from dynbranch.runtime.clock import ManualClock
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

DEMAND = DemandId(b"d" * 16)


def arrival(workflow: str = "") -> ArrivalSeen:
    return ArrivalSeen(UnixMs(1), DEMAND, Identity(workflow_id=workflow), "chat", None, streaming=True)


def outcome(kind: str, saved_ms: float = 0.0) -> OutcomeSeen:
    return OutcomeSeen(UnixMs(2), DEMAND, kind, latency_ms=12.0, saved_ms=saved_ms, input_tokens=3)


def batch(first: int, *events: GatewayEvent, reporter: str = "g1") -> EventBatch:
    return EventBatch(reporter, first, events)


def handle(journal: Journal, sent: EventBatch, now: float = 0.0) -> int:
    received = journal.handle(sent, Instant(now))
    journal.validate_state()
    assert len(received.fresh) + received.duplicates == len(sent.events)
    return len(received.fresh)


def test_events_are_folded_into_the_summary() -> None:
    journal = Journal()
    sent = batch(
        0, arrival("w1"), outcome("hit", 5.0), arrival("w1"), outcome("miss"), arrival("w2"), arrival()
    )
    assert handle(journal, sent) == 6
    assert journal.summary() == ControllerSummary(
        arrivals=4, outcomes=(("hit", 1), ("miss", 1)), saved_ms=5.0, workflows=2
    )


def test_an_outcome_nobody_knows_does_not_grow_the_summary() -> None:
    journal = Journal()
    handle(journal, batch(0, *(outcome(f"kind-{n}") for n in range(50))))
    assert journal.summary().outcomes == (("other", 50),)


def test_a_redelivered_batch_counts_once() -> None:
    journal = Journal()
    assert handle(journal, batch(0, arrival(), arrival())) == 2
    assert handle(journal, batch(0, arrival(), arrival(), arrival())) == 1
    assert handle(journal, batch(0, arrival(), reporter="g2")) == 1
    summary = journal.summary()
    assert (summary.arrivals, summary.duplicates, summary.lost) == (4, 2, 0)


def test_a_number_passed_over_is_lost_until_it_comes() -> None:
    journal = Journal()
    handle(journal, batch(0, arrival()))
    handle(journal, batch(5, arrival()))
    assert journal.summary().lost == 4
    assert handle(journal, batch(2, arrival(), arrival())) == 2
    assert journal.summary().lost == 2
    assert handle(journal, batch(3, arrival())) == 0
    assert (journal.summary().lost, journal.summary().duplicates) == (2, 1)


def test_what_was_sent_before_this_controller_lived_is_not_lost_but_still_welcome() -> None:
    journal = Journal()
    handle(journal, batch(100, arrival()))
    assert journal.summary().lost == 0
    assert handle(journal, batch(98, arrival(), arrival(), arrival())) == 2
    assert (journal.summary().lost, journal.summary().duplicates) == (0, 1)


def test_an_empty_batch_says_nothing() -> None:
    journal = Journal()
    assert handle(journal, batch(7)) == 0
    assert journal.summary() == ControllerSummary()


def test_reporters_are_bounded_and_their_losses_remembered() -> None:
    journal = Journal(Limits(reporters=2, reporter_silence_s=100.0))
    handle(journal, batch(0, arrival(), reporter="a"))
    handle(journal, batch(3, arrival(), reporter="a"))
    for number, reporter in enumerate("bcd"):
        handle(journal, batch(0, arrival(), reporter=reporter), now=float(number))
    assert journal.summary().lost == 2
    handle(journal, batch(0, arrival(), reporter="e"), now=500.0)
    assert len(journal._reporters) == 1


def test_workflows_are_bounded_and_the_busy_ones_stay() -> None:
    journal = Journal(Limits(workflows=2))
    handle(journal, batch(0, arrival("a"), arrival("b"), arrival("a")))
    handle(journal, batch(3, arrival("c")))
    handle(journal, batch(4, arrival("a")))
    assert journal.summary().workflows == 3
    handle(journal, batch(5, arrival("b")))
    assert journal.summary().workflows == 4


def test_gaps_are_bounded_and_a_wild_number_breaks_nothing() -> None:
    numbering = Numbering(0)
    for number in range(0, 4 * MAX_GAPS, 2):
        assert numbering.claim(number + 1)
        numbering.validate_state()
    assert numbering.lost == 2 * MAX_GAPS
    assert not numbering.claim(0)
    journal = Journal()
    handle(journal, batch(0, arrival()))
    handle(journal, batch(2**64 - 1, arrival()))
    handle(journal, batch(0, arrival(), reporter="g2"))
    handle(journal, batch(2**64 - 1, arrival(), reporter="g2"))
    assert journal.summary().lost == 2**64 - 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=20))
def test_any_delivery_counts_each_number_once(deliveries: list[tuple[int, int]]) -> None:
    """Whatever is reordered, repeated or dropped on the way, against a plain set of numbers."""
    journal = Journal()
    came: set[int] = set()
    sent = 0
    for first, size in deliveries:
        fresh = set(range(first, first + size)) - came
        assert handle(journal, batch(first, *[arrival()] * size)) == len(fresh)
        came |= fresh
        sent += size
    summary = journal.summary()
    expected = set(range(deliveries[0][0], max(came) + 1))
    assert summary.arrivals == len(came)
    assert summary.duplicates == sent - len(came)
    assert summary.lost == len(expected - came)


def test_the_shell_counts_in_prometheus() -> None:
    registry = CollectorRegistry()
    shell = ControllerShell(Journal(), ManualClock(), ControllerMetrics(registry))
    assert shell.report_events(batch(0, arrival("w"), outcome("hit", 2_000.0), outcome("strange"))) == 3
    assert shell.report_events(batch(2, outcome("strange"), arrival())) == 1
    shell.report_events(batch(9, arrival()))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"dynbranch_controller_{name}", labels)

    assert value("arrivals_total") == 3
    assert value("outcomes_total", outcome="hit", failed="false") == 1
    assert value("outcomes_total", outcome="other", failed="false") == 1
    assert value("latency_seconds_count", outcome="hit") == 1
    assert value("saved_seconds_total") == pytest.approx(2.0)
    assert value("tokens_total", kind="input") == 6
    assert value("duplicate_events_total") == 1
    assert value("lost_events") == 5
    assert value("workflows") == 1
    assert shell.summary().arrivals == 3
