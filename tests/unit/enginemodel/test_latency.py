"""The equations of docs/stub-engine.md, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.enginemodel.messages import Abort, Admitted, Event, Pace, Preempted, Raise, Submit
from dynbranch.enginemodel.model import engine_model
from dynbranch.enginemodel.parameters import (
    H200_QWEN3_32B,
    PRESETS,
    BatchParameters,
    FixedParameters,
    Parameters,
    UnknownPreset,
    preset,
)
from unit.enginemodel.drive import drive

PLAIN = BatchParameters(
    decode_step_ms=10,
    batched_extra_ms=2,
    sequence_ms=1,
    kilotoken_ms=0,
    prefill_tokens_per_s=1000,
    kv_pool_tokens=10_000,
    prefill_chunk_tokens=100,
    slots=2,
    block_tokens=10,
)


def ms(seconds: float) -> float:
    return round(seconds * 1000, 6)


def blocks(name: str, count: int) -> tuple[tuple[str, int], ...]:
    return tuple((name, number) for number in range(count))


def test_one_request_alone() -> None:
    # 250 tokens of prompt are chunks of 100, 100 and 50 ms; then two steps of 10 + 1.
    run = drive(engine_model(PLAIN), [(0.0, Submit("a", 250, 3, every_token=True))])
    assert {index: ms(at) for index, at in run.tokens("a").items()} == {0: 250, 1: 261}
    assert ms(run.finished_at("a")) == 272


def test_a_short_prompt_costs_a_step_all_the_same() -> None:
    run = drive(engine_model(PLAIN), [(0.0, Submit("a", 1, 1))])
    assert ms(run.finished_at("a")) == 10


def test_a_step_grows_with_the_context() -> None:
    run = drive(engine_model(replace(PLAIN, kilotoken_ms=10)), [(0.0, Submit("a", 100, 4))])
    # 101, 102 and 103 tokens are read.
    assert ms(run.finished_at("a")) == pytest.approx(100 + 3 * 11 + 1.01 + 1.02 + 1.03)


def test_prefill_stalls_those_who_decode() -> None:
    events: list[tuple[float, Event]] = [
        (0.0, Submit("a", 10, 5, every_token=True)),
        (0.011, Submit("b", 100, 1)),
    ]
    run = drive(engine_model(PLAIN), events)
    # The step in flight ends at 21; the next carries b's 100 ms.
    assert [ms(at) for at in run.tokens("a").values()] == [10, 21, 132, 143]
    assert ms(run.finished_at("b")) == 132


def test_two_decode_in_one_step() -> None:
    events: list[tuple[float, Event]] = [(0.0, Submit("a", 10, 3)), (0.0, Submit("b", 10, 3))]
    run = drive(engine_model(PLAIN), events)
    # b came when a's prefill had begun: its own is in the next step, beside a's decode.
    assert ms(run.finished_at("a")) == 10 + (11 + 10) + (10 + 2 + 2)
    assert ms(run.finished_at("b")) == 45 + 11


def test_slots_are_given_by_priority_then_arrival() -> None:
    events: list[tuple[float, Event]] = [(0.0, Submit(n, 10, 5)) for n in ("a", "b")]
    events += [(0.011, Submit("late", 10, 5, priority=1)), (0.012, Submit("soon", 10, 5, priority=-1))]
    run = drive(engine_model(PLAIN), events)
    assert [effect.request for effect in run.of(Admitted)] == ["a", "b", "soon", "late"]


@pytest.mark.parametrize("parameters", [PLAIN, FixedParameters(30, 7, slots=2)])
def test_who_becomes_urgent_waits_no_longer_behind_the_others(parameters: Parameters) -> None:
    events: list[tuple[float, Event]] = [(0.0, Submit(n, 10, 5)) for n in ("a", "b")]
    events += [(0.011, Submit("fill", 10, 5, priority=2)), (0.012, Submit("other", 10, 5, priority=1))]
    events += [(0.013, Submit("late", 10, 5)), (0.014, Raise("fill", 0)), (0.014, Raise("nobody", 0))]
    run = drive(engine_model(parameters), events)
    assert [effect.request for effect in run.of(Admitted)] == ["a", "b", "fill", "late", "other"]


def test_who_became_urgent_while_it_ran_is_not_the_first_to_be_preempted() -> None:
    events: list[tuple[float, Event]] = [
        (0.0, Submit("fill", 40, 40, priority=1)),
        (0.0, Submit("canonical", 40, 40)),
        (0.2, Raise("fill", 0)),
    ]
    for raised in (True, False):
        model = engine_model(replace(PLAIN, kv_pool_tokens=100, block_tokens=0))
        run = drive(model, events if raised else events[:2])
        assert [effect.request for effect in run.of(Preempted)] == ["canonical" if raised else "fill"]


def test_a_common_prefix_is_computed_once() -> None:
    events: list[tuple[float, Event]] = [
        (0.0, Submit("a", 100, 1, blocks("x", 10))),
        (1.0, Submit("b", 100, 1, blocks("x", 10))),
        (2.0, Submit("c", 100, 1, blocks("y", 10))),
    ]
    run = drive(engine_model(PLAIN), events)
    hits = [effect.hit_tokens for effect in run.of(Admitted) if isinstance(effect, Admitted)]
    # The last token of a prompt is always computed.
    assert hits == [0, 90, 0]
    assert ms(run.finished_at("b") - 1.0) == 10


def test_what_was_generated_is_a_prefix_too() -> None:
    events: list[tuple[float, Event]] = [
        (0.0, Submit("turn 1", 50, 30, blocks("x", 8))),
        (5.0, Submit("turn 2", 100, 1, blocks("x", 10))),
    ]
    run = drive(engine_model(PLAIN), events)
    last = run.of(Admitted)[-1]
    assert isinstance(last, Admitted) and last.hit_tokens == 80


def test_blocks_go_in_the_order_of_their_last_use() -> None:
    model = engine_model(replace(PLAIN, kv_pool_tokens=210))
    events: list[tuple[float, Event]] = [
        (0.0, Submit("a", 100, 1, blocks("a", 10))),
        (1.0, Submit("b", 100, 1, blocks("b", 10))),
        (2.0, Submit("c", 100, 1, blocks("c", 10))),
        (3.0, Submit("b again", 100, 1, blocks("b", 10))),
        (4.0, Submit("a again", 100, 1, blocks("a", 10))),
    ]
    hits = [e.hit_tokens for e in drive(model, events).of(Admitted) if isinstance(e, Admitted)]
    assert hits == [0, 0, 0, 90, 0]


def test_pressure_preempts_the_last_and_computes_it_again() -> None:
    model = engine_model(replace(PLAIN, kv_pool_tokens=100, block_tokens=0))
    events: list[tuple[float, Event]] = [
        (0.0, Submit("first", 40, 40, every_token=True)),
        (0.0, Submit("second", 40, 40, every_token=True)),
    ]
    run = drive(model, events)
    assert [effect.request for effect in run.of(Preempted)] == ["second"]
    assert sorted(run.tokens("second")) == list(range(39))
    assert run.finished_at("second") > run.finished_at("first")


def test_an_abort_frees_its_slot_at_the_end_of_the_step() -> None:
    model = engine_model(replace(PLAIN, slots=1))
    events: list[tuple[float, Event]] = [
        (0.0, Submit("a", 10, 100)),
        (0.0, Submit("b", 10, 1)),
        (0.015, Abort("a")),
    ]
    run = drive(model, events)
    assert ms(run.of(Admitted, "b")[0].at) == 21
    assert model.gauges.counters.aborted == 1


def test_the_published_point_of_the_preset() -> None:
    """Routing's execution: 270 tokens in about 4.6 s."""
    run = drive(engine_model(H200_QWEN3_32B), [(0.0, Submit("a", 800, 270))])
    assert 4.55 < run.finished_at("a") < 4.75


def test_fixed_times_do_not_care_for_the_load() -> None:
    parameters = FixedParameters(time_to_first_token_ms=50, inter_token_ms=20)
    events: list[tuple[float, Event]] = [(0.0, Submit(n, 10, 11)) for n in range(50)]
    run = drive(engine_model(parameters), events)
    assert {ms(run.finished_at(number)) for number in range(50)} == {250}


def test_a_request_may_have_its_own_pace() -> None:
    order = Submit("a", 10, 3, every_token=True, pace=Pace(5, 1))
    run = drive(engine_model(FixedParameters(50, 20)), [(0.0, order)])
    assert [ms(at) for at in run.tokens("a").values()] == [5, 6]


def test_presets_have_names() -> None:
    assert set(PRESETS) == {"fixed", "h200-qwen3-32b", "rtx4090-qwen3-8b"}
    with pytest.raises(UnknownPreset, match="h200-qwen3-32b"):
        preset("h100")
    with pytest.raises(ValueError, match="positive"):
        replace(PLAIN, slots=0)
