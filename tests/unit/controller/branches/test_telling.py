"""What people see of branches: spans, metrics, and the questions that predictors are asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dynbranch.controller.branch_metrics import BranchMetrics
from dynbranch.controller.branch_spans import BranchSpans
from dynbranch.controller.core.branches.messages import (
    Effect,
    PredictorAnswer,
    PrepareStage,
    Propose,
    Told,
    WorkflowKey,
)
from dynbranch.controller.core.branches.view import view_of
from dynbranch.controller.core.predictors.history import History
from dynbranch.controller.core.predictors.port import Resolution, TextKind
from dynbranch.controller.questions import question_of
from dynbranch.domain.fills import SettlementKind
from dynbranch.domain.ids import BranchId, DemandId, Instant
from dynbranch.domain.template import Moment, MomentKind, Output, Template, WorkflowContext
from dynbranch.naming.document import parse_text
from dynbranch.rendering.following import Follower
from dynbranch.rendering.watching import load_template
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry
from unit.controller.branches.scenes import WORKFLOW, Scene, routed

DEMO = Path(__file__).resolve().parents[4] / "apps" / "dynbranch" / "demo" / "templates"


class Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BranchSpans, Kept]]:
    kept = Kept()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    spans = BranchSpans()
    monkeypatch.setattr(spans, "_tracer", provider.get_tracer("test"))
    yield spans, kept
    provider.shutdown()


def lived() -> tuple[Scene, list[Effect]]:
    """A branch with a fill that is promoted and one that is refused."""
    scene = Scene(routed(then=("work",)))
    scene.arrive("route", "r1")
    branch = scene.branch
    scene.propose(branch, "a", "b", "c", "d")
    for selection in "abc":
        scene.end(scene.run(branch.fills[selection]))
    a = branch.fills["a"]
    scene.settle(a.stages[0], a, SettlementKind.SHADOWED)
    scene.settle(a.stages[0], a, SettlementKind.PROMOTED, by=WORKFLOW)
    for selection in "bc":
        lost = branch.fills[selection]
        scene.settle(lost.stages[0], lost, SettlementKind.SHADOWED)
        scene.settle(lost.stages[0], lost, SettlementKind.DISCARDED, reason="lost")
    return scene, scene.effects


def test_a_branch_is_a_span_with_its_life_and_each_fill_one_that_is_linked_to_it(
    traced: tuple[BranchSpans, Kept],
) -> None:
    spans, kept = traced
    scene, effects = lived()
    with trace.use_span(trace.INVALID_SPAN):
        for effect in effects:
            if isinstance(effect, PrepareStage):
                spans.prepare(effect)
            if isinstance(effect, Told):
                spans.tell(effect, scene.branch)
    branch = next(span for span in kept.spans if span.name == "branch")
    fills = [span for span in kept.spans if span.name == "fill"]
    assert [event.name for event in branch.events][:3] == ["opened", "proposed", "priced"]
    assert branch.events[-1].name == "settled" and branch.parent is None
    refused = [dict(e.attributes or {}) for e in branch.events if e.name == "priced"][-1]
    assert refused["dynbranch.admitted"] is False and refused["dynbranch.reason"] == "beyond the first 3"
    assert len(fills) == 3
    for fill in fills:
        assert fill.parent is None and fill.context.trace_id != branch.context.trace_id
        assert fill.links[0].context.span_id == branch.context.span_id
    ended = dict(fills[0].attributes or {})
    assert ended["dynbranch.consumed"] is True and ended["dynbranch.saved_ms"] == 50.0


def traceparent(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


def test_a_branch_is_linked_to_the_requests_that_opened_and_resolved_it(
    traced: tuple[BranchSpans, Kept],
) -> None:
    spans, kept = traced
    scene = Scene(routed(opens=(Moment(MomentKind.ARRIVAL, "work"),), then=("sum",)))
    requests = {DemandId(b"w1"): 1, DemandId(b"r1"): 2}
    for demand_id, number in requests.items():
        spans.hear(demand_id, traceparent(number))
    spans.hear(DemandId(b"untraced"), "")

    def tell(effects: list[Effect], because: str) -> None:
        with spans.because_of(DemandId(because.encode())):
            for effect in effects:
                if isinstance(effect, Told):
                    spans.tell(effect, scene.branch)

    tell(scene.arrive("work", "w1"), "w1")
    tell(scene.propose(scene.branch, "a"), "nobody")
    tell(scene.arrive("route", "r1"), "r1")
    tell(scene.answer("r1", chosen=["a"]), "r1")
    [branch] = kept.spans
    assert [link.context.span_id for link in branch.links] == [1, 2]


def test_a_fill_names_its_span_while_it_runs(traced: tuple[BranchSpans, Kept]) -> None:
    spans, kept = traced
    scene, effects = lived()
    fill_id = scene.branch.fills["a"].fill_id
    named = set()
    for effect in effects:
        if isinstance(effect, PrepareStage):
            spans.prepare(effect)
            named.add(spans.traceparent(fill_id))
        if isinstance(effect, Told):
            spans.tell(effect, scene.branch)
    fill = next(span for span in kept.spans if span.name == "fill")
    assert [one.split("-")[2] for one in named] == [f"{fill.context.span_id:016x}"]
    assert spans.traceparent(fill_id) == ""


def test_metrics_count_branches_candidates_and_engine_time() -> None:
    scene, effects = lived()
    registry = CollectorRegistry()
    metrics = BranchMetrics(registry)
    metrics.watch(scene.book)
    for effect in effects:
        if isinstance(effect, Told):
            metrics.tell(effect, scene.branch)
    place = {"workflow_type": "routing", "decision_point": "way"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {**place, **labels})

    assert value("dynbranch_branches_total", move="resolved") == 1
    assert value("dynbranch_branch_candidates_total", admitted="false") == 1
    assert value("dynbranch_fill_stages_total", state="promoted") == 1
    assert value("dynbranch_fill_engine_seconds_total", kind="used") == pytest.approx(0.15)
    assert value("dynbranch_fill_engine_seconds_total", kind="saved") == pytest.approx(0.05)
    assert value("dynbranch_fill_engine_seconds_total", kind="discarded") == pytest.approx(0.1)
    assert registry.get_sample_value("dynbranch_reserved_fills") == 0


def test_the_view_says_why_each_candidate_ran_or_did_not() -> None:
    scene, _ = lived()
    view = view_of(scene.branch, Instant(scene.now))
    assert [one["reason"] for one in view["candidates"]] == ["always"] * 3 + ["beyond the first 3"]
    assert [one["selected"] for one in view["candidates"]] == [True, False, False, False]
    assert view["engine_time"] == {"used_ms": 150.0, "saved_ms": 50.0, "discarded_ms": 100.0}
    assert view["state"] == "settled" and view["resolution"]["by"] == "demand"
    assert "secret" not in str(view)


def test_the_view_says_what_each_predictor_said() -> None:
    scene, _ = lived()
    scene.branch.answers = (PredictorAnswer("history(window=9)", "ranked", 1.23456, ("red", "blue")),)
    assert view_of(scene.branch, Instant(scene.now))["prediction"]["answers"] == [
        {"predictor": "history(window=9)", "answer": "ranked", "spent_ms": 1.235, "ranking": ["red", "blue"]}
    ]


def asked(template: Template, point: str, context: WorkflowContext, sharing_group: str = "") -> Propose:
    return Propose(
        BranchId(b"b"),
        WorkflowKey("t", template.workflow_type, "w"),
        template,
        template.point(point),
        context,
        trail=("x",),
        not_before=Instant(0.0),
        sharing_group=sharing_group,
    )


def test_who_shares_no_results_learns_nothing_from_the_other() -> None:
    template = load_template(DEMO / "react.yaml").template
    history, context = History(), WorkflowContext({"question": "Which river?"})
    mine, also_mine, theirs = (
        question_of(asked(template, "entity", context, group), Follower(template))
        for group in ("one key", "one key", "another key")
    )
    history.learn(Resolution(mine, ("Tiber",)), Instant(0.0))
    assert history.propose(also_mine, Instant(1.0)) == ("Tiber",)
    assert history.propose(theirs, Instant(1.0)) == ()


def test_a_menu_of_functions_is_asked_with_what_each_is_for() -> None:
    template = load_template(DEMO / "routing-chain.yaml").template
    functions = parse_text(
        '[{"name":"weather","description":"the weather of a city","parameters":{"type":"object",'
        '"properties":{"city":{"type":"string","description":"its name"}},"required":["city"]}},'
        '{"name":"time","description":"what time it is"}]'
    )
    context = WorkflowContext({"functions": functions, "user": "How warm is Rome?"})
    question = question_of(asked(template, "handler", context), Follower(template))
    assert question.candidates is not None
    assert [one.selection for one in question.candidates] == ["weather", "time"]
    assert question.candidates[0].about.split("\n") == ["the weather of a city", "city", "its name"]
    assert [(text.kind, text.body) for text in question.texts] == [(TextKind.ASKED, "How warm is Rome?")]
    after = question_of(
        asked(template, "handler", context.with_selection("handler", ("time",))), Follower(template)
    )
    assert after.candidates is not None and [one.selection for one in after.candidates] == ["weather"]
    assert after.picked == ("time",) and after.trail == ("x",)


def test_an_open_vocabulary_is_asked_with_what_was_read_and_what_it_was_read_for() -> None:
    template = load_template(DEMO / "react.yaml").template
    got = Output('{"id":"p1","title":"Rome","text":"Rome lies on the Tiber.","version":1}')
    context = WorkflowContext({"question": "Which river?"}, {"get": (got,)}, {"entity": (("Rome",),)})
    question = question_of(asked(template, "entity", context), Follower(template))
    assert question.candidates is None and question.at_most == 3
    assert [(text.kind, text.body, text.title) for text in question.texts] == [
        (TextKind.ASKED, "Which river?", ""),
        (TextKind.STEP, "Rome", ""),
        (TextKind.READ, "Rome lies on the Tiber.", "Rome"),
    ]
