"""The bench of predictors: it asks before it tells, its parts are apart, and its records are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dynbranch.bench import predictors as bench
from dynbranch.bench.predictor_visibility import ROUTER, THINKER, watched
from dynbranch.bench.predictor_weights import fitted
from dynbranch.controller.core.predictors.entities import FEATURES
from dynbranch.controller.core.predictors.port import Question, Resolution, TextKind
from dynbranch.domain.ids import Instant
from dynbranch.gateway.core.spoken import MenuSpoken, RequestSpoken, RequestTexts, SpokenNames
from dynbranch.records.decisions import (
    Decision,
    commands,
    dialogues,
    exactly,
    loosely,
    react,
    routing,
    strictly,
    subagents,
)
from dynbranch.records.loading import SHIPPED, Records, load, tuned
from unit.controller.predictors.questions import HERE, among


@pytest.fixture(scope="module")
def records() -> Records:
    return load()


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, Question]] = []

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        self.events.append(("asked", question))
        return ()

    def learn(self, resolution: Resolution, now: Instant) -> None:
        self.events.append(("told", resolution.question))


def test_a_predictor_is_told_after_it_was_asked_and_before_the_next_question(records: Records) -> None:
    recorder = Recorder()
    seen = bench.run(bench.Trial("routing", routing, lambda: recorder), records)
    assert len(seen) == 417
    kinds = [kind for kind, _ in recorder.events]
    assert kinds == ["asked", "told"] * len(seen)
    assert all(a == b for (_, a), (_, b) in zip(recorder.events[::2], recorder.events[1::2], strict=True))


def test_no_question_holds_its_answer(records: Records) -> None:
    """In a chain of calls the earlier ones are known, and no later one."""
    by_record: dict[str, list[Decision]] = {}
    for decision in routing(records):
        by_record.setdefault(decision.record, []).append(decision)
    for decisions in by_record.values():
        made = [decision.selection for decision in decisions]
        assert [list(d.question.picked) for d in decisions] == [made[:n] for n in range(len(made))]
    for decision in react(records, "musique"):
        assert not any(strictly(known, decision.selection) for known in decision.question.picked)


def test_the_workloads_are_there(records: Records) -> None:
    assert records.where == "package"
    assert sum(1 for _ in react(records, "musique")) == 186
    assert sum(1 for _ in react(records, "hotpot")) == 125
    assert any(True for _ in dialogues(records))
    assert any(True for _ in subagents(records))
    assert any(True for _ in commands(records))
    for folder in SHIPPED:
        assert (folder / "NOTICE.md").exists()


def test_what_is_not_known_is_not_in_the_facts(records: Records) -> None:
    def facts(decision: Decision) -> str:
        return " ".join(decision.question.facts)

    session = next(d for d in records.dialogues if len(d["sv"]) > 1)
    one = Records("", (), (), (), {}, (), (session,), records.menus, ())
    first_blind, first = next(iter(dialogues(one, services=False))), next(iter(dialogues(one)))
    later = [service for service in session["sv"] if service != session["br"][0]["sv"]]
    assert all(service not in facts(first_blind) and service in facts(first) for service in later)


def test_without_the_step_only_the_question_and_the_passage_are_known(records: Records) -> None:
    kinds = {text.kind for d in react(records, "musique", step=False) for text in d.question.texts}
    assert kinds == {TextKind.ASKED, TextKind.READ}


def test_the_part_that_parameters_were_chosen_on_is_two_fifths() -> None:
    share = sum(tuned(str(number)) for number in range(2000)) / 2000
    assert 0.35 < share < 0.45


def test_names_are_compared_as_said() -> None:
    assert exactly("a", "a") and not exactly("A", "a")
    assert strictly("The Beatles", "beatles") and not strictly("Beatles band", "Beatles")
    assert loosely("Beatles band", "Beatles") and not loosely("x Beatles y", "Beatles")


def test_a_share_has_an_interval_over_whole_records() -> None:
    seen = [bench.Seen(f"r{n % 10}", False, "", n % 10 < 7, 0.1) for n in range(100)]
    figure = bench.top_share(seen, 1)
    assert figure.value == pytest.approx(0.7)
    # Ten records, not a hundred decisions: the interval is as wide as ten allow.
    assert figure.ci_high - figure.ci_low > 0.4
    assert bench.top_share([], 1).n == 0


def _item(text: str) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()


def test_a_routers_choice_is_told_before_it_is_whole() -> None:
    pieces = ('{"reason": "time is short",', ' "handler": "', "get_", "t", "ime", '"}')
    names = among("get_weather", "get_time", "book")
    menu = SpokenNames(MenuSpoken(name.selection for name in names or ()))
    decode = watched("r", Question(HERE, names), [_item(p) for p in pieces], ROUTER, menu)
    assert decode is not None
    # "get_" may be either yet, and with a "t" it is one.
    assert decode.spoken == ((4 / 6, True),)
    assert decode.choice == "get_time"
    assert (decode.seen.told, decode.seen.certain) == (4 / 6, 1.0)


def test_a_thought_that_names_what_is_looked_up_tells_it() -> None:
    pieces = (
        "Thought: the seat is",
        " in Mountrail County",
        ".\n",
        "Action: lookup[",
        "Mountrail County",
        "]",
        "\n",
    )
    names = among("North Dakota", "Mountrail County")
    request = RequestTexts(["A seat in North Dakota", "Mountrail County is in North Dakota"])
    of_request = SpokenNames(RequestSpoken(request))
    decode = watched("r", Question(HERE, names), [_item(p) for p in pieces], THINKER, of_request)
    assert decode is not None
    assert decode.spoken == ((3 / 7, True),)
    assert (decode.seen.told, decode.seen.certain) == (2 / 7, 1.0)
    assert watched("r", Question(HERE, names), [_item("Thought: none")], THINKER, of_request) is None


def test_weights_are_fitted_to_what_tells_names_apart() -> None:
    right, wrong = [0.0] * len(FEATURES), [0.0] * len(FEATURES)
    right[0], wrong[1] = 1.0, 1.0
    weights = fitted([([tuple(wrong), tuple(right)], [False, True])] * 3)
    assert weights[0] > 0 > weights[1]
    assert not any(weights[2:])


def test_a_folder_without_records_says_so(tmp_path: Path) -> None:
    measured = bench.measure(lambda what, done, total: None, data=tmp_path, decodes=False)
    assert "routing_top1 has no records" in measured.failures
