"""What holds of the engine models whatever is asked of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.enginemodel.messages import Abort, Admitted, Event, Preempted, Raise, Refused, Submit
from dynbranch.enginemodel.model import engine_model
from dynbranch.enginemodel.parameters import BatchParameters, FixedParameters, Parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.enginemodel.drive import Run, drive

SMALL = BatchParameters(
    decode_step_ms=10,
    batched_extra_ms=1,
    sequence_ms=0.5,
    kilotoken_ms=2,
    prefill_tokens_per_s=4000,
    kv_pool_tokens=400,
    prefill_chunk_tokens=64,
    slots=4,
    block_tokens=8,
)
FIXED = FixedParameters(time_to_first_token_ms=30, inter_token_ms=7, slots=3, block_tokens=8)


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[float, Event]]:
    """Requests of a few families of prompts, some of which are aborted or become urgent."""
    found: list[tuple[float, Event]] = []
    for number in range(draw(st.integers(1, 9))):
        at = draw(st.integers(0, 600)) / 1000
        prompt, output = draw(st.integers(1, 260)), draw(st.integers(1, 60))
        family, shared = draw(st.integers(0, 2)), draw(st.integers(0, 20))
        blocks = tuple(
            (family, n) if n < shared else (number, n) for n in range((prompt + output) // SMALL.block_tokens)
        )
        order = Submit(
            number,
            prompt,
            output,
            blocks,
            priority=draw(st.integers(-1, 1)),
            marks=tuple(draw(st.lists(st.integers(0, 70), max_size=2))),
            every_token=draw(st.booleans()),
        )
        found.append((at, order))
        if draw(st.integers(0, 3)) == 0:
            found.append((at + draw(st.integers(0, 1500)) / 1000, Abort(number)))
        for _ in range(draw(st.integers(0, 2))):
            later = at + draw(st.integers(0, 900)) / 1000
            found.append((later, Raise(number, draw(st.integers(-3, 2)))))
    return found


MODELS = st.sampled_from([SMALL, replace(SMALL, block_tokens=0), replace(SMALL, kilotoken_ms=0), FIXED])


@settings(max_examples=100, deadline=None)
@given(MODELS, arrivals())
def test_every_request_ends_once_and_leaves_nothing(
    parameters: Parameters, events: list[tuple[float, Event]]
) -> None:
    model = engine_model(parameters)
    run = drive(model, events)
    gauges, counters = model.gauges, model.gauges.counters
    submitted = {event.request for _, event in events if isinstance(event, Submit)}
    ended = [effect.request for effect in run.effects if type(effect).__name__ in ("Finished", "Refused")]
    assert len(ended) == len(set(ended))
    assert counters.submitted == len(submitted)
    assert len(ended) + counters.aborted == len(submitted)
    assert gauges.running == gauges.waiting == 0
    assert gauges.kv_used_share == 0
    assert counters.preemptions == len(run.of(Preempted))


@settings(max_examples=100, deadline=None)
@given(MODELS, arrivals())
def test_hits_stay_below_the_prompt_and_tokens_keep_their_order(
    parameters: Parameters, events: list[tuple[float, Event]]
) -> None:
    run = drive(engine_model(parameters), events)
    orders = {event.request: (at, event) for at, event in events if isinstance(event, Submit)}
    for effect in run.of(Admitted):
        assert isinstance(effect, Admitted)
        assert 0 <= effect.hit_tokens < orders[effect.request][1].prompt_tokens
    for request, (at, order) in orders.items():
        told = list(run.tokens(request).items())
        assert told == sorted(told)
        assert [instant for _, instant in told] == sorted(instant for _, instant in told)
        assert all(instant >= at and index < order.output_tokens for index, instant in told)
        if order.every_token and run.of(Admitted, request) and not run.of(Preempted, request):
            assert [index for index, _ in told] == list(range(len(told)))


@settings(max_examples=100, deadline=None)
@given(MODELS, arrivals(), st.lists(st.floats(0, 3, allow_nan=False), max_size=30))
def test_looking_more_often_changes_nothing(
    parameters: Parameters, events: list[tuple[float, Event]], looks: list[float]
) -> None:
    quiet = [(at, replace(e, every_token=False) if isinstance(e, Submit) else e) for at, e in events]
    once = drive(engine_model(parameters), quiet)
    again = drive(engine_model(parameters), quiet, extra_wakes=looks)
    assert once.effects == again.effects


@settings(max_examples=60, deadline=None)
@given(MODELS, arrivals())
def test_equal_inputs_give_equal_runs(parameters: Parameters, events: list[tuple[float, Event]]) -> None:
    assert drive(engine_model(parameters), events) == drive(engine_model(parameters), events)


@settings(max_examples=60, deadline=None)
@given(arrivals())
def test_hearing_about_every_token_changes_no_instant(events: list[tuple[float, Event]]) -> None:
    def ends(every: bool) -> list[tuple[object, float]]:
        changed = [(at, replace(e, every_token=every) if isinstance(e, Submit) else e) for at, e in events]
        run = drive(engine_model(SMALL), changed)
        return [(effect.request, effect.at) for effect in run.effects if type(effect).__name__ == "Finished"]

    assert ends(True) == ends(False)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 200), st.integers(1, 50), st.booleans())
def test_more_load_is_never_faster(others: int, prompt: int, output: int, pressed: bool) -> None:
    parameters = replace(SMALL, kv_pool_tokens=600 if pressed else 10**6, block_tokens=0)

    def first_end(load: int) -> float:
        events = [(0.0, Submit(number, prompt, output)) for number in range(load)]
        return drive(engine_model(parameters), events).finished_at(0)

    assert first_end(others + 1) >= first_end(others)


@pytest.mark.parametrize("parameters", [SMALL, FIXED])
def test_an_order_larger_than_the_pool(parameters: Parameters) -> None:
    run: Run = drive(engine_model(parameters), [(0.0, Submit("big", 390, 50))])
    assert bool(run.of(Refused)) is isinstance(parameters, BatchParameters)
