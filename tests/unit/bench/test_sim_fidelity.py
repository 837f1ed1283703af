"""What the simulator is held against: the fit of its preset, the replay of real runs, the paper's curve."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from dynbranch.bench.result import BenchFailed
from dynbranch.bench.sim_fidelity import ARMS, Compared, Pair, foretold, stretch_curve
from dynbranch.bench.sim_fidelity_probes import (
    BESIDE,
    CROWDED,
    DEEP,
    EVERY,
    FORMED,
    LONG,
    REFERENCE,
    SHORT,
    Block,
    Fitted,
    fitted,
)
from dynbranch.bench.sim_fidelity_replay import Costs, template_of, workflow_of
from dynbranch.bench.sim_fidelity_stretch import Point, Shapes, stretched
from dynbranch.demo.branch_arms import AHEAD_ONLY, FLOOR
from dynbranch.demo.branch_runs import Run
from dynbranch.demo.flows import MENUS, REACT, ROUTING_CHAIN, SUB_AGENTS
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.playing import Played, Step
from dynbranch.demo.records import passages
from dynbranch.demo.rehearsal import answer, performances
from dynbranch.enginemodel.parameters import H200_QWEN3_32B, BatchParameters

COSTS = Costs(0.01, 1.5)
MACHINE = BatchParameters(20.0, 12.0, 2.0, 10.0, 400, 16_384, prefill_chunk_tokens=8, slots=4, block_tokens=0)


# -- the curve ---------------------------------------------------------------------------------------------


def test_the_curve_of_the_paper_is_met() -> None:
    figures, raw, rows = stretch_curve()
    assert figures["stretch_curve_max_error"].value <= 0.25
    assert len(rows) == len(raw["points"]) == 5


def test_more_fills_and_longer_contexts_stretch_more() -> None:
    def of(fills: int, words: int) -> float:
        point = Point(fills, words, 1.0)
        return stretched(H200_QWEN3_32B, point, seed=1, probes=5, shapes=Shapes(100, 50, 200)).stretch

    assert of(0, 0) == pytest.approx(1.0)
    assert 1.0 < of(1, 0) < of(8, 0) < of(24, 0) < of(24, 1000) < of(24, 3000)


# -- the fit -----------------------------------------------------------------------------------------------


def machine_ms(shape_tokens: tuple[int, int], beside: int, *, overhead_ms: float = 5.0) -> float:
    """What the machine needs for a request beside so many short decodes."""
    prompt, output = shape_tokens
    one, total = MACHINE, overhead_ms + 1000 * prompt / MACHINE.prefill_tokens_per_s
    for step in range(1, output):
        total += one.decode_ms(1 + beside, prompt + step + 54 * beside)
    return total


def block(speed: float) -> Block:
    sizes = {
        REFERENCE.name: (54, 32),
        SHORT.name: (54, 8),
        LONG.name: (230, 8),
        DEEP.name: (230, 32),
        FORMED.name: (54, 30),
        BESIDE.name: (54, 32),
        CROWDED.name: (54, 32),
    }
    beside = {BESIDE.name: 1, CROWDED.name: 2}
    ms = {name: speed * machine_ms(size, beside.get(name, 0)) for name, size in sizes.items()}
    reference_ms = ms.pop(REFERENCE.name)
    return Block(reference_ms, {name: one / reference_ms for name, one in ms.items()}, sizes)


def test_the_fit_finds_the_machine_whatever_its_speed_was() -> None:
    found = fitted([block(speed) for speed in (1.0, 2.0, 0.7, 1.0, 1.3)])
    assert found.reference_ms == pytest.approx(block(1.0).reference_ms)
    one = found.parameters
    assert one.prefill_tokens_per_s == pytest.approx(MACHINE.prefill_tokens_per_s, rel=0.05)
    for sequences, context in ((1, 60), (1, 250), (2, 120), (3, 180)):
        wanted = MACHINE.decode_ms(sequences, context)
        assert one.decode_ms(sequences, context) == pytest.approx(wanted, rel=0.06)
    assert 1000 * found.overhead_s == pytest.approx(5.0, abs=3.0)
    assert found.form_tokens == pytest.approx(1.0, abs=0.05)


def test_a_machine_at_half_the_speed_takes_twice_as_long() -> None:
    found = fitted([block(1.0)])
    slow = found.at(2 * found.reference_ms)
    assert slow.decode_ms(2, 500) == pytest.approx(2 * found.parameters.decode_ms(2, 500))
    assert slow.prefill_tokens_per_s == pytest.approx(found.parameters.prefill_tokens_per_s / 2)


def test_probes_that_make_no_sense_are_no_preset() -> None:
    one = block(1.0)
    with pytest.raises(BenchFailed, match="no sense"):
        fitted([replace(one, ratios={**one.ratios, SHORT.name: 5.0})])
    with pytest.raises(BenchFailed, match="nothing was probed"):
        fitted([replace(one, ratios={key: one.ratios[key] for key in list(one.ratios)[:2]})])
    assert {shape.name for shape in EVERY} == one.ratios.keys()


# -- the replay --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PassageStore]:
    store = PassageStore(tmp_path_factory.mktemp("passages") / "passages.sqlite")
    store.load(passages())
    yield store
    store.close()


def played(kind: str, store: PassageStore, place: int = 0) -> Played:
    """A flow as a harness would have seen it; each answer is of a token for four characters."""
    performance = [one for one in performances("a-model") if one.workflow_type == kind][place]
    steps: list[Step] = []
    try:
        ask = next(performance.flow)
        while True:
            text = answer(ask, store)
            counts = [len(ask.body) // 4, max(2, len(text) // 4)]
            result = text if ask.kind == "tool" else json.dumps([text, "stop", *counts])
            latency_ms = 3.0 if ask.kind == "tool" else 100.0
            steps.append(Step(ask.stage, ask.kind, "bypass", 0.0, latency_ms, ask.body, result, text))
            ask = performance.flow.send(text)
    except StopIteration:
        return Played(kind, performance.record, "w", tuple(steps), 1000.0)


def branch(point: str, picked: str, *ranked: str, opened: float = 0.0) -> Mapping[str, Any]:
    rows = [
        {
            "selection": one,
            "rank": rank,
            "seen_in_decode": False,
            "spoken_of": False,
            "selected": one == picked,
        }
        for rank, one in enumerate(ranked, 1)
    ]
    seen = {"selection": picked, "rank": 99, "seen_in_decode": True, "spoken_of": False, "selected": True}
    return {
        "decision_point": point,
        "opened_unix_ms": opened,
        "resolution": {"selections": [picked], "by": "stream"},
        "candidates": [*rows, seen],
    }


@pytest.mark.parametrize("kind", [ROUTING_CHAIN, REACT, SUB_AGENTS, MENUS])
def test_every_request_of_a_model_is_replayed_in_its_order(kind: str, store: PassageStore) -> None:
    for place in range(3):
        one = played(kind, store, place)
        workflow = workflow_of(one, COSTS)
        calls = [step.call for turn in workflow.turns for step in turn.steps]
        chats = [step for step in one.steps if step.kind == "chat"]
        assert [call.stage for call in calls] == [step.stage for step in chats]
        tools_s = sum(step.latency_ms for step in one.steps if step.kind == "tool") / 1000
        assert sum(call.before_s for call in calls) == pytest.approx(len(calls) * COSTS.overhead_s + tools_s)
        assert (len(workflow.turns) > 1) == (kind == MENUS)
        names = {stage.name for stage in template_of(kind).stages}
        assert {call.stage for call in calls} <= names
        for turn in workflow.turns:
            for step in turn.steps:
                if step.decision is not None and step.decision.picked:
                    (picked,) = step.decision.picked
                    at = calls.index(step.call)
                    chain = step.decision.chains[picked]
                    assert chain and list(chain) == calls[at + 1 : at + 1 + len(chain)]


def test_candidates_are_what_was_proposed_when_the_branch_opened(store: PassageStore) -> None:
    one = next(flow for place in range(9) if len((flow := played(ROUTING_CHAIN, store, place)).steps) > 5)
    picks = [json.loads(step.text)["handler"] for step in one.steps if step.stage == "route"]
    branches = [
        branch("handler", picks[1], picks[1], "nobody", opened=2.0),
        branch("handler", picks[0], picks[1], opened=1.0),
    ]
    steps = [step for turn in workflow_of(one, COSTS, branches).turns for step in turn.steps]
    first, second, *_ = (step.decision for step in steps if step.call.stage == "route")
    assert first is not None and second is not None
    assert (first.ranked, first.picked) == ((picks[1],), (picks[0],))
    assert first.chains[picks[1]] == second.chains[picks[1]], "what is not chosen now is chosen later"
    assert second.ranked == (picks[1], "nobody")
    assert len(second.chains["nobody"]) == 2 and first.shown_at is not None and first.final
    assert not {call.content for call in second.chains["nobody"]} & {step.call.content for step in steps}


@pytest.mark.parametrize("kind", [ROUTING_CHAIN, REACT, SUB_AGENTS, MENUS])
def test_running_ahead_is_foretold_to_be_no_slower_on_a_machine_with_room(
    kind: str, store: PassageStore
) -> None:
    roomy = replace(
        MACHINE, batched_extra_ms=0.0, sequence_ms=0.0, kilotoken_ms=0.0, prefill_tokens_per_s=1e6
    )
    preset, flow = Fitted(roomy, 500.0, 0.01, 1.0), played(kind, store)
    point = template_of(kind).decision_points[0]
    branches = [
        branch(point.name, picked, picked, opened=number) for number, picked in enumerate(_picked(flow, kind))
    ]
    costs = Costs(preset.overhead_s, preset.form_tokens)
    floor = sum(foretold(FLOOR, flow, Run(FLOOR, flow), costs, preset, 500.0).turns_s)
    ahead = sum(
        foretold(AHEAD_ONLY, flow, Run(AHEAD_ONLY, flow, tuple(branches)), costs, preset, 500.0).turns_s
    )
    assert 0 < ahead < floor + 0.1
    slow = sum(foretold(FLOOR, flow, Run(FLOOR, flow), costs, preset, 1000.0).turns_s)
    assert slow > 1.5 * floor


def _picked(flow: Played, kind: str) -> list[str]:
    workflow = workflow_of(flow, COSTS)
    decisions = [step.decision for turn in workflow.turns for step in turn.steps]
    return [one.picked[0] for one in decisions if one is not None and one.picked]


def test_the_error_is_that_of_the_worse_arm() -> None:
    pairs = [
        Pair(arm, kind, str(number), 10.0, said_s, 500.0)
        for arm, said_s in zip(ARMS, (11.0, 8.0), strict=True)
        for kind in (REACT, MENUS)
        for number in range(3)
    ]
    figures = Compared(tuple(pairs), fitted([block(1.0)]), (block(1.0),)).figures()
    assert figures["mean_latency_error"].value == pytest.approx(0.2)
    assert figures["mean_error_of_cells"].value == pytest.approx(0.15)
    assert figures["floor_react_foretold_over_measured"].value == pytest.approx(1.1)


def test_a_decision_that_was_cut_off_is_none(store: PassageStore) -> None:
    one = played(ROUTING_CHAIN, store)
    cut = tuple(
        replace(step, text=step.text[: len(step.text) // 2]) if step.stage == "route" else step
        for step in one.steps
    )
    workflow = workflow_of(replace(one, steps=cut), COSTS)
    decisions = [step.decision for turn in workflow.turns for step in turn.steps if step.decision is not None]
    assert decisions and not any(one.picked or one.ranked for one in decisions)
