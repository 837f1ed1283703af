"""The evaluation's workloads: the same for the same arguments, true to the published points, and honest about
what is known when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from dynbranch.controller.core.predictors.port import Question, Resolution
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import Branching, Speculable, Window
from dynbranch.records.loading import Record, Records, load
from dynbranch.sim.fleet.workflows import Call, Step, Workload
from dynbranch.sim.workloads import react, routing, subagent
from dynbranch.sim.workloads.description import Description, describe
from dynbranch.sim.workloads.published import NumbersInvalid, read_numbers
from dynbranch.sim.workloads.show import ROWS, table
from dynbranch.sim.workloads.sizes import Lengths
from dynbranch.sim.workloads.stories import Making
from dynbranch.sim.workloads.stream import kind
from dynbranch.sim.workloads.workload import (
    FRESH,
    TABLE_1,
    WRITERS,
    UnknownWorkload,
    load_rate,
    low_rate,
    slots,
    workload,
)
from dynbranch.wording.words import name_words

FOUR = ("routing", "react", "subagent", "hci")
COUNT = 400


@pytest.fixture(scope="module")
def streams() -> dict[str, Workload]:
    return {name: workload(name, count=COUNT) for name in FOUR}


@pytest.fixture(scope="module")
def described(streams: dict[str, Workload]) -> dict[str, Description]:
    return {name: describe(stream) for name, stream in streams.items()}


def steps(stream: Workload) -> list[Step]:
    return [step for workflow in stream.workflows for turn in workflow.turns for step in turn.steps]


# The same arguments, the same workflows


@pytest.mark.parametrize("name", [*WRITERS])
def test_the_same_seed_gives_the_same_workflows(name: str) -> None:
    once, again, other = (workload(name, count=40, seed=seed) for seed in (1, 1, 2))
    assert once.workflows == again.workflows
    assert once.workflows != other.workflows
    assert len(once.workflows) == 40
    assert "seed 1" in once.name and "40 workflows" in once.name


def test_a_rate_moves_arrivals_and_nothing_else() -> None:
    slow, fast = (workload("routing", rate=rate, count=60) for rate in (0.5, 1.0))
    assert [one.turns for one in slow.workflows] == [one.turns for one in fast.workflows]
    for one, other in zip(slow.workflows, fast.workflows, strict=True):
        assert one.at_s == pytest.approx(2 * other.at_s)


def test_more_replay_keeps_what_was_replayed_with_less() -> None:
    less, more = (workload("routing", count=200, replay=share, overlap=0.0) for share in (0.22, 0.77))
    for one, other in zip(less.workflows, more.workflows, strict=True):
        assert one.repeats is None or other.repeats == one.repeats
    shares = [sum(w.repeats is not None for w in stream.workflows) / 200 for stream in (less, more)]
    assert shares == pytest.approx([0.22, 0.77], abs=0.07)


@pytest.mark.parametrize("name", [*FOUR, "commands"])
def test_streams_of_two_seeds_have_nothing_in_common(name: str) -> None:
    """What one has seen, as a cache that is filled before, says nothing of the other."""
    made = [{step.call.content for step in steps(workload(name, count=60, seed=seed))} for seed in (1, 2)]
    assert not made[0] & made[1]


def test_records_that_come_again_are_others() -> None:
    """More workflows than records: what comes around has new contents."""
    stream = workload("routing", count=300, replay=0.0, overlap=0.0)
    handled = [step.call.content for step in steps(stream) if step.call.stage == "handle"]
    assert len(handled) == len(set(handled))


# What a workflow holds


@pytest.mark.parametrize("name", FOUR)
def test_what_is_picked_is_what_comes_next(name: str, streams: dict[str, Workload]) -> None:
    for workflow in streams[name].workflows:
        made = [step for turn in workflow.turns for step in turn.steps]
        for place, step in enumerate(made):
            if step.decision is None or not step.decision.picked:
                continue
            chain = step.decision.chains[step.decision.picked[0]]
            assert chain == tuple(later.call for later in made[place + 1 : place + 1 + len(chain)])


@pytest.mark.parametrize("name", FOUR)
def test_every_candidate_has_a_chain_of_the_templates_stages(name: str, streams: dict[str, Workload]) -> None:
    template = streams[name].template
    for step in steps(streams[name]):
        if step.decision is None:
            continue
        point = template.point(step.decision.point)
        assert step.call.stage == point.stage
        spoken = [name for _, name in step.decision.spoken]
        assert set(step.decision.chains) == {*step.decision.ranked, *step.decision.picked, *spoken}
        for chain in step.decision.chains.values():
            assert tuple(call.stage for call in chain) == point.then
            assert all(template.stage(call.stage).speculable is Speculable.YES for call in chain)


@pytest.mark.parametrize("name", FOUR)
def test_equal_contents_are_equal_calls(name: str, streams: dict[str, Workload]) -> None:
    known: dict[str, Call] = {}
    for step in steps(streams[name]):
        chains = step.decision.chains.values() if step.decision is not None else ()
        for call in (step.call, *(call for chain in chains for call in chain)):
            assert known.setdefault(call.content, call) == call
            assert call.prompt_tokens >= 1 and call.output_tokens >= 1
            assert len(call.blocks) * 16 <= call.prompt_tokens + call.output_tokens


@pytest.mark.parametrize("name", FOUR)
def test_a_replay_says_its_original_again(name: str, streams: dict[str, Workload]) -> None:
    found = streams[name].workflows
    for workflow in found:
        if workflow.repeats is not None:
            assert workflow.repeats < workflow.number
            original = found[workflow.repeats]
            assert [turn.steps for turn in workflow.turns] == [turn.steps for turn in original.turns]


@pytest.mark.parametrize("name", FOUR)
def test_what_overlaps_has_a_part_of_another(name: str, streams: dict[str, Workload]) -> None:
    found = streams[name].workflows
    ahead = {stage for point in streams[name].template.decision_points for stage in point.then}

    def parts(number: int) -> set[str]:
        made = (step.call for turn in found[number].turns for step in turn.steps)
        return {call.content for call in made if call.stage in ahead}

    overlapping = [workflow for workflow in found if workflow.shares is not None]
    assert overlapping
    for workflow in overlapping:
        assert workflow.shares is not None and workflow.repeats is None
        assert parts(workflow.number) & parts(workflow.shares)


def test_conversations_grow_from_what_was_said(streams: dict[str, Workload]) -> None:
    for workflow in streams["react"].workflows:
        thoughts = [s.call for turn in workflow.turns for s in turn.steps if s.call.stage == "think"]
        for one, later in pairwise(thoughts):
            assert later.blocks[: len(one.blocks)] == one.blocks
            assert later.prompt_tokens > one.prompt_tokens + one.output_tokens


def test_a_menu_is_not_measured_and_a_person_thinks(streams: dict[str, Workload]) -> None:
    for workflow in streams["hci"].workflows:
        offering, doing = workflow.turns
        assert not offering.measured and doing.measured
        assert offering.gap_s == 0 and doing.gap_s > 0


# The published points


def test_every_number_says_where_it_comes_from(tmp_path: Path) -> None:
    numbers = read_numbers()
    assert all(number.origin for number in numbers.found.values())
    assert slots(numbers) == 64
    assert (low_rate("hci", numbers), low_rate("react", numbers)) == (0.3, 0.12)
    assert load_rate("routing", numbers) == 0.8
    for text in ("a = 1", "a = {value = 1}", 'a = {value = 1, from = ""}', "[a]\nb = 1"):
        (tmp_path / "numbers.toml").write_text(text)
        with pytest.raises(NumbersInvalid):
            read_numbers(tmp_path / "numbers.toml")
    with pytest.raises(NumbersInvalid, match="nothing"):
        numbers["nothing"]


def test_lengths_meet_the_published_points() -> None:
    """Of workflows that do not repeat, whose lengths are as many."""
    routed, asked, divided, picked = (describe(workload(name, mix=FRESH, count=COUNT)) for name in FOUR)
    # Windows of 4.6 s and 2.7 s, a fill of 6.2 to 6.5 s, floors of 14.4 to 18.2 s, 21.1 s and about 15 s.
    assert routed.window_s == pytest.approx(4.6, rel=0.06)
    assert routed.execution_s == pytest.approx(6.4, rel=0.06)
    assert 14.4 <= routed.floor_s <= 18.2
    assert asked.floor_s == pytest.approx(21.1, rel=0.06)
    assert divided.floor_s == pytest.approx(14.8, rel=0.06)
    assert picked.window_s == pytest.approx(2.7, rel=0.06)
    # T_gen over T_exec: 0.36, 0.47, 0.77; and 65 % of a turn can be filled.
    assert asked.window_over_execution == pytest.approx(0.36, rel=0.08)
    # Two rounds share an aggregator, so that it is 0.50 where one of them has 0.47.
    assert routed.window_over_execution == pytest.approx(0.50, rel=0.08)
    assert divided.window_over_execution == pytest.approx(0.77, rel=0.08)
    assert picked.fillable == pytest.approx(0.65, abs=0.03)
    assert routed.candidates == pytest.approx(2.67, rel=0.1)


def test_routing_repeats_as_much_as_the_paper_removes_by_reuse(described: dict[str, Description]) -> None:
    assert 0.38 <= described["routing"].reusable <= 0.50
    for one in described.values():
        assert one.repeated == pytest.approx(0.40, abs=0.06)
        assert one.overlapping == pytest.approx(0.10, abs=0.05)


def test_predictions_are_as_good_as_the_shipped_predictors(described: dict[str, Description]) -> None:
    """As bench/results/predictors.json has them, on the depths and the mix of these streams."""
    assert described["routing"].top[1] == pytest.approx(0.97, abs=0.04)
    assert described["react"].top[0] == pytest.approx(0.50, abs=0.10)
    assert described["hci"].top[2] == pytest.approx(0.84, abs=0.08)
    assert described["subagent"].top[2] == pytest.approx(0.85, abs=0.05)


def test_windows_and_gaps_can_be_swept() -> None:
    plain, twice = (describe(workload("routing", count=80, window=window)) for window in (1.0, 2.0))
    assert twice.window_over_execution == pytest.approx(2 * plain.window_over_execution, rel=0.02)
    assert describe(workload("hci", count=150, gap_s=5.0)).window_s == pytest.approx(5.0, rel=0.08)
    with pytest.raises(ValueError, match="window"):
        workload("hci", window=2.0)


def test_table_1_has_repeats_overlaps_and_what_has_nothing_in_common() -> None:
    stream = workload("subagent", mix=TABLE_1, count=300, clients=1)
    known: set[str] = set()
    for workflow in stream.workflows:
        made = {step.call.content for turn in workflow.turns for step in turn.steps}
        match kind(workflow):
            case "repeat":
                assert made <= known
            case "partial":
                assert made & known and not made <= known
            case _:
                assert not made & known
        known |= made
    one = describe(stream)
    assert (one.repeated, one.overlapping) == (pytest.approx(0.25, abs=0.06), pytest.approx(0.25, abs=0.06))
    assert stream.clients == 1 and stream.workflows[-1].at_s == 0.0


def test_nothing_is_common_to_fresh_workflows() -> None:
    for name in FOUR:
        assert describe(workload(name, mix=FRESH, count=60)).reusable == 0.0


# What is known when


def test_a_choice_shows_only_within_its_decode(streams: dict[str, Workload]) -> None:
    for stream in streams.values():
        for step in steps(stream):
            if step.decision is not None and step.decision.shown_at is not None:
                assert step.decision.picked
                assert 0 <= step.decision.shown_at < step.call.output_tokens - 1
    never = workload("routing", count=40, shown="never")
    assert all(s.decision is None or s.decision.shown_at is None for s in steps(never))


def test_what_a_selector_sees_comes_after_what_is_told() -> None:
    told, certain = (workload("routing", count=120, shown=shown) for shown in ("told", "certain"))

    def mean(stream: Workload) -> float:
        shares = [
            (s.decision.shown_at + 1) / s.call.output_tokens
            for s in steps(stream)
            if s.decision is not None and s.decision.shown_at is not None
        ]
        return sum(shares) / len(shares)

    assert mean(told) == pytest.approx(0.74, abs=0.03)
    assert mean(certain) == pytest.approx(0.93, abs=0.02)


@pytest.mark.parametrize("name", ["routing", "react", "subagent"])
def test_decodes_speak_of_names_as_real_ones_do(name: str) -> None:
    stream = workload(name, count=80)
    measured = read_numbers()[f"{name}.spoken"]
    decisions = [(s.decision, s.call.output_tokens) for s in steps(stream) if s.decision is not None]
    for decision, output_tokens in decisions:
        for token, spoken in decision.spoken:
            assert 0 <= token < output_tokens - 1 and decision.chains[spoken]
        assert len({spoken for _, spoken in decision.spoken}) == len(decision.spoken) <= 3
    chosen = [decision for decision, _ in decisions if decision.picked]
    named = sum(any(one in d.picked for _, one in d.spoken) for d in chosen) / len(chosen)
    real = sum(any(is_choice for _, is_choice in one) for one in measured) / len(measured)
    assert named == pytest.approx(real, abs=0.12)
    for shown in ("told", "never"):
        silent = workload(name, count=10, shown=shown)
        assert not any(s.decision.spoken for s in steps(silent) if s.decision is not None)


@pytest.mark.parametrize("name", FOUR)
def test_what_comes_later_changes_nothing(name: str) -> None:
    assert workload(name, count=80).workflows[:50] == workload(name, count=50).workflows


def test_no_ranking_depends_on_its_own_answer() -> None:
    """The last name that the first question looks up is another: it is foretold as before."""
    records = load(None, ("react",))
    first = _react_story(records)
    decisions = [step.decision for step in first if step.decision is not None]
    asked = decisions[-2].picked[0]
    other = tuple(record | {"hops": _answered(record["hops"], asked)} for record in records.questions)
    again = [s.decision for s in _react_story(replace(records, questions=other)) if s.decision is not None]
    assert again[-2].picked == ("Nobody Knows",)
    for one, two in zip(decisions[:-1], again[:-1], strict=True):
        assert [name_words(name) for name in one.ranked] == [name_words(name) for name in two.ranked]


def _react_story(records: Records) -> list[Step]:
    """The first of them whose last name is an answer."""
    numbers = read_numbers()
    writer = react.ReactWriter(Making(records, numbers, Lengths(3, 0.3), 3))
    return [step for turn in writer.write(0).turns for step in turn.steps]


def _answered(hops: list[Record], name: str) -> list[Record]:
    return [hop | {"ans": "Nobody Knows"} if hop.get("ans") == name else hop for hop in hops]


@pytest.mark.parametrize("name", ["routing", "react", "hci"])
def test_a_prediction_is_made_before_its_decision_is_learned(name: str) -> None:
    told: list[tuple[str, Question]] = []

    class Listening:
        def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
            told.append(("asked", question))
            return ()

        def learn(self, resolution: Resolution, now: Instant) -> None:
            told.append(("learned", resolution.question))

    numbers = read_numbers()
    writer = WRITERS[name](Making(load(None, (name,)), numbers, Lengths(1, 0.3), 1))
    writer._predictor = Listening()  # type: ignore[attr-defined]
    for number in range(20):
        writer.write(number)
    assert len(told) >= 40
    assert [what for what, _ in told] == ["asked", "learned"] * (len(told) // 2)
    assert all(one[1] is two[1] for one, two in zip(told[::2], told[1::2], strict=True))


def test_a_thought_is_in_no_prompt_that_runs_ahead(streams: dict[str, Workload]) -> None:
    """A passage's reading, a report and a handler are the same whatever was written on the way to them."""
    for name, thinking in (("react", "think"), ("subagent", "plan")):
        for step in steps(streams[name]):
            assert step.decision is None or all(
                thinking not in call.content.split("/")[0]
                for chain in step.decision.chains.values()
                for call in chain
            )


def test_of_a_plan_only_parts_whose_needs_are_done_are_known(streams: dict[str, Workload]) -> None:
    record = {
        "id": "q",
        "subs": [{"sub": "a", "ref": []}, {"sub": "b", "ref": []}, {"sub": "c of a, b", "ref": [0, 1]}],
    }
    asked = subagent._asked(record)
    assert subagent._ready(asked, 1) == ["b"]
    assert subagent._ready(asked, 2) == ["c of a, b"]
    line = {"id": "q", "subs": [{"sub": "a"}, {"sub": "b"}, {"sub": "c"}]}
    assert subagent._ready(subagent._asked(line), 1) == ["b"]


def test_a_function_that_is_called_again_is_called_with_other_arguments() -> None:
    made = routing._request(
        {"id": "r", "steps": [{"h": "f", "d": "1"}, {"h": "f", "d": "2"}, {"h": "g"}]}, []
    ).made
    assert made == (("f", "1"), ("f", "2"), ("g", "r 2"))


# Arrivals, templates, and what is refused


def test_templates_are_as_the_paper_draws_them(streams: dict[str, Workload]) -> None:
    drawn = {
        "routing": (Window.DECODE, Branching.EXCLUSIVE),
        "react": (Window.DECODE, Branching.EXCLUSIVE),
        "subagent": (Window.DECODE, Branching.EXCLUSIVE),
        "hci": (Window.WAIT, Branching.INDEPENDENT),
    }
    for name, (window, branching) in drawn.items():
        (point,) = streams[name].template.decision_points
        assert (point.window, point.branching) == (window, branching)
    other = workload("routing", count=1, branching=Branching.INDEPENDENT)
    assert other.template.decision_points[0].branching is Branching.INDEPENDENT


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownWorkload, match="routing"):
        workload("chess")
    with pytest.raises(UnknownWorkload, match="table 1"):
        workload("routing", mix="table 9")
    with pytest.raises(ValueError, match="exclude"):
        workload("routing", clients=1, trace="azure-code")
    with pytest.raises(ValueError, match="no records"):
        workload("routing", data=tmp_path)
    with pytest.raises(ValueError, match="at most 1"):
        workload("routing", replay=0.95, overlap=0.1)


def test_what_is_read_can_be_written() -> None:
    stream = workload("react", count=60, rate=1.0, writes=0.5)
    read = {record for step in steps(stream) for record in step.call.reads}
    assert stream.writes and all(set(write.records) <= read for write in stream.writes)
    with pytest.raises(ValueError, match="nothing"):
        workload("routing", count=20, writes=0.5)


def test_width_bounds_candidates() -> None:
    assert all(
        s.decision is None or len(s.decision.ranked) <= 1 for s in steps(workload("hci", count=50, width=1))
    )


def test_nobody_knows_of_anothers_beginning_where_prefixes_are_off() -> None:
    assert not any(step.call.blocks for step in steps(workload("subagent", count=20, prefixes=False)))


def test_what_repeats_is_its_originals_tenants() -> None:
    stream = workload("hci", count=120, tenants=7)
    assert len({workflow.tenant for workflow in stream.workflows}) == 7
    for workflow in stream.workflows:
        for original in (workflow.repeats, workflow.shares):
            assert original is None or stream.workflows[original].tenant == workflow.tenant


def test_a_table_shows_what_they_come_to() -> None:
    lines = table(None, 20, (1,)).splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert all(line.count("|") == lines[0].count("|") for line in lines)
