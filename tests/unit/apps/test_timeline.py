"""The picture of one workflow."""

from __future__ import annotations

from xml.etree import ElementTree

from dynbranch.demo.playing import Played, Step
from dynbranch.demo.timeline import bars_of, timeline_svg
from dynbranch.demo.tracefile import SeenSpan


def step(stage: str, outcome: str, begin_ms: float, latency_ms: float) -> Step:
    return Step(stage, "chat", outcome, begin_ms, latency_ms, b"", "", "")


def span(name: str, begin_ms: int, end_ms: int, **attributes: object) -> SeenSpan:
    return SeenSpan(
        service="", name=name, trace_id="t", span_id="", parent_id="", kind=0,
        start_ns=begin_ms * 10**6, end_ns=end_ms * 10**6, attributes=attributes,
        links=(), events=(), failed=False,
    )  # fmt: skip


def test_requests_and_fills_share_one_clock() -> None:
    floor = Played("k", "r", "w", (step("plan", "bypass", 0, 500), step("act", "bypass", 500, 700)), 1200)
    steps = (step("plan", "miss", 0, 500), step("act", "promoted", 500, 5))
    ahead = Played("k", "r", "w", steps, 505, began_unix_ms=1000)
    spans = [
        span("fill", 1010, 1400, **{"dynbranch.selection": "a<b", "dynbranch.consumed": True}),
        span("generate", 1020, 1390),
    ]
    bars = bars_of(floor, ahead, spans)
    assert [(bar.begin_ms, bar.end_ms, bar.kind) for bar in bars] == [
        (0, 500, "executed"), (500, 1200, "executed"),
        (0, 500, "executed"), (500, 505, "promoted"), (20, 390, "fill"),
    ]  # fmt: skip
    picture = ElementTree.fromstring(timeline_svg(bars, "one"))
    assert "fill 1: a<b" in [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
