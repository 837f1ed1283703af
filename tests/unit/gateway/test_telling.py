"""What is read along, and when the controller is told."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from dynbranch.controller.fake import FakeController
from dynbranch.domain.events import ChoiceSeen, OutcomeSeen, OutputTold, Selection
from dynbranch.domain.ids import BranchId, DemandId, UnixMs
from dynbranch.domain.reuse import Identity
from dynbranch.domain.template import Ambiguous, Origin, Output, OutputPart, StageKind, Where
from dynbranch.gateway.core.outcome import Outcome, Report, outcome_headers
from dynbranch.gateway.listening import (
    LOOK_EVERY_S,
    MAX_CHOICES,
    MAX_ITEM_BYTES,
    MAX_OUTPUT_CHARACTERS,
    ChoiceWatch,
    Listener,
)
from dynbranch.gateway.reporter import MAX_BATCH_BYTES, MAX_QUEUED_BYTES, Reporter
from dynbranch.gateway.telling import TemplateInForce, output_told, recognise, stage_told
from dynbranch.gateway.templates import FORGET_S, Templates, read_template
from dynbranch.naming.document import parse_body
from dynbranch.rendering.selectors import Selector
from dynbranch.runtime.clock import ManualClock
from integration.gateway.fills import ACT, DECIDE, DRAW, PICKS, TEMPLATE

PICK = Selector(Where(Origin.OUTPUT, "decide", path="$.pick"), several=False)
NAMES = Selector(Where(Origin.OUTPUT, "decide", part=OutputPart.CALL_NAME), several=True)
WORDS = Selector(Where(Origin.OUTPUT, "decide", regex=r"go to (\w+)"), several=True)
MENUS = read_template("picks", TEMPLATE)


def chunk(text: str = "", calls: list[object] | None = None, finish: str | None = None) -> bytes:
    delta: dict[str, object] = {"content": text} if text else {}
    if calls:
        delta["tool_calls"] = calls
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


def call(index: int, name: str = "", arguments: str = "") -> dict[str, object]:
    return {"index": index, "function": {"name": name, "arguments": arguments}}


class Heard:
    """One answer read along, and the choices that were told of it."""

    def __init__(self, kind: StageKind = StageKind.CHAT, **selectors: Selector) -> None:
        self.told: list[tuple[tuple[str, ...], bool, int]] = []
        watch = ChoiceWatch(selectors, self._tell) if selectors else None
        self.listener = Listener(kind, watch)

    def _tell(self, selection: Selection, closed: bool, items: int) -> None:
        self.told.append((selection.chosen, closed, items))

    async def say(self, *items: bytes) -> None:
        """Each in a look of its own."""
        for item in items:
            self.listener.more((item,))
            await asyncio.sleep(2 * LOOK_EVERY_S)


async def test_a_choice_is_told_once_and_when_its_text_is_complete() -> None:
    heard = Heard(pick=PICK)
    await heard.say(chunk('{"pick":"re'))
    assert not heard.told
    await heard.say(chunk('d"'), chunk(',"more":1}'), chunk(finish="stop"))
    assert heard.told == [(("red",), True, 2)]


async def test_parallel_calls_are_told_one_by_one_and_close_nothing() -> None:
    heard = Heard(call=NAMES)
    await heard.say(chunk(calls=[call(0, "search", "{")]), chunk(calls=[call(1, "get", "{}")]))
    assert heard.told == [(("search",), False, 1), (("get",), False, 2)]


async def test_a_choice_that_stands_everywhere_is_not_told_for_ever() -> None:
    heard = Heard(word=WORDS)
    heard.listener.more(tuple(chunk(f"go to w{number} ") for number in range(2 * MAX_CHOICES)))
    await asyncio.sleep(0)
    assert len(heard.told) == MAX_CHOICES


async def test_another_answer_in_the_place_of_one_that_failed() -> None:
    heard = Heard(pick=PICK)
    await heard.say(chunk('{"pick":"red"'))
    heard.listener.forget()
    await heard.say(chunk('{"pick":"red"'), chunk("}", finish="stop"))
    heard.listener.ended(5.0)
    assert heard.listener.output() == Output('{"pick":"red"}', finish="stop")
    assert heard.told == [(("red",), True, 1)]


async def test_an_answer_that_did_not_end_is_none() -> None:
    heard = Heard()
    await heard.say(chunk("half"))
    assert heard.listener.output() is None


async def test_what_is_no_chunk_adds_nothing_and_breaks_nothing() -> None:
    heard = Heard(pick=PICK)
    await heard.say(b"\xff", b"[]", b'{"choices":7}', chunk('{"pick":1}', finish="stop"))
    heard.listener.ended(1.0)
    assert heard.listener.output() == Output('{"pick":1}', finish="stop")


@pytest.mark.parametrize("size", [MAX_OUTPUT_CHARACTERS + 1, MAX_ITEM_BYTES])
@pytest.mark.parametrize("kind", list(StageKind))
async def test_what_is_too_large_is_whole_and_not_told(kind: StageKind, size: int) -> None:
    heard = Heard(kind)
    item = chunk("x" * size, finish="stop") if kind is StageKind.CHAT else b"x" * size
    await heard.say(item, item)
    heard.listener.ended(1.0)
    assert heard.listener.complete and heard.listener.output() is None


async def test_nothing_is_read_while_the_relay_works() -> None:
    heard = Heard(pick=PICK)
    heard.listener.more((chunk('{"pick":"red"}'),))
    assert not heard.told
    await asyncio.sleep(0)
    assert heard.told == [(("red",), True, 1)]


async def test_what_comes_in_quick_succession_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # However slowly the machine runs, what follows comes before the next look.
    monkeypatch.setattr("dynbranch.gateway.listening.LOOK_EVERY_S", 600.0)
    heard = Heard(call=NAMES)
    for number in range(20):
        heard.listener.more((chunk(calls=[call(number, "search", "{")]), chunk("x")))
    await asyncio.sleep(0)
    heard.listener.more((chunk(calls=[call(20, "get", "{")]),))
    await asyncio.sleep(0)
    assert heard.told == [(("search",), False, 40)]
    heard.listener.ended(1.0)
    output = heard.listener.output()
    assert output is not None and len(output.calls) == 21 and output.text == "x" * 20
    assert [chosen for chosen, _, _ in heard.told] == [("search",), ("get",)]


# -- requests and answers ----------------------------------------------------------------------------------


def test_stages_are_recognised_by_header_or_by_what_they_hold() -> None:
    found = [recognise(MENUS, StageKind.CHAT, "", body, "").stage for body in (DECIDE, ACT, DRAW)]
    assert [stage.name if stage else "" for stage in found] == ["decide", "act", "draw"]
    assert recognise(MENUS, StageKind.CHAT, "", b"{}", "").stage is None
    assert recognise(MENUS, StageKind.CHAT, "", b"{}", "act").stage == MENUS.template.stage("act")


@pytest.mark.parametrize(("body", "may_be"), [(DRAW, True), (ACT, False), (b"{}", True)])
def test_only_a_stage_that_is_sampled_once_may_be_one(body: bytes, may_be: bool) -> None:
    assert recognise(MENUS, StageKind.CHAT, "", body, "").may_be_once is may_be


def test_inputs_keep_their_spelling() -> None:
    stage = MENUS.template.stage("decide")
    told = stage_told(
        MENUS,
        stage,
        parse_body(DECIDE).value,
        sharing_group="g",
        cache_scope="s",
        forward_headers=(("authorization", "k"),),
    )
    assert told.values == (("menu", '["red","blue"]'),) and told.sharing_group == "g"


def test_a_persons_pick_is_told_with_the_request_that_carries_it() -> None:
    text = TEMPLATE.replace(
        "resolved_by: {output: decide, path: $.pick}",
        "resolved_by: {request: act, path: '$.messages[0].content', regex: '^Do (.*)$'}",
    ).replace("window: decode", "window: wait")
    waits = read_template("picks", text.replace("opens: {arrival: decide}", "opens: {output: decide}"))
    stage = waits.template.stage("act")
    told = stage_told(
        waits, stage, parse_body(ACT).value, sharing_group="", cache_scope="", forward_headers=()
    )
    assert told.selections == (Selection("pick", ("red",)),)


@pytest.mark.parametrize(
    ("output", "selections"),
    [
        (Output('{"pick":"red"}', finish="stop"), (Selection("pick", ("red",)),)),
        (Output('{"none":"red"}', finish="stop"), ()),
        (Output('{"pick":"re', finish="length"), (Selection("pick", ambiguous=True),)),
        (None, (Selection("pick", ambiguous=True),)),
    ],
)
def test_an_answer_tells_its_selections(output: Output | None, selections: tuple[Selection, ...]) -> None:
    told = output_told(MENUS, MENUS.template.stage("decide"), output, 7.0)
    assert told.selections == selections and told.execution_ms == 7.0
    assert bool(told.output_json) is (output is not None)


def test_ambiguous_is_what_the_selector_says() -> None:
    assert isinstance(PICK.select(Output("x", finish="stop")), Ambiguous)


# -- the reporter ------------------------------------------------------------------------------------------


def outcome(size: int = 0) -> OutcomeSeen:
    told = OutputTold("decide", output_json=b"x" * size) if size else None
    return OutcomeSeen(UnixMs(1), DemandId(b"d"), "miss", 1.0, told=told)


CHOICE = ChoiceSeen(UnixMs(1), DemandId(b"d"), Identity(), "s", 0, Selection("p", ("x",)), True, 1)


async def test_what_a_decision_hangs_on_goes_at_once_with_what_waits() -> None:
    clock, controller = ManualClock(), FakeController()
    reporter = Reporter(controller, name="g", clock=clock)
    running = asyncio.get_running_loop().create_task(reporter.run())
    try:
        reporter.report(outcome())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not controller.batches and clock.sleeping == 1
        reporter.report(CHOICE, at_once=True)
        for _ in range(10):
            await asyncio.sleep(0)
        assert [len(batch.events) for batch in controller.batches] == [2]
        reporter.report(outcome())
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(controller.batches) == 1
        clock.advance(1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(controller.batches) == 2
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_outputs_are_bounded_in_batches_and_while_they_wait() -> None:
    controller = FakeController()
    reporter = Reporter(controller, name="g", clock=ManualClock(), max_queued=10_000)
    size = 2**18
    for _ in range(200):
        reporter.report(outcome(size), at_once=True)
    kept = MAX_QUEUED_BYTES // size
    assert reporter.dropped == 200 - kept
    await reporter.flush()
    assert max(len(batch.events) for batch in controller.batches) == MAX_BATCH_BYTES // size
    assert sum(len(batch.events) for batch in controller.batches) == kept
    reporter.report(outcome(size))
    assert reporter.dropped == 200 - kept


# -- the templates in force --------------------------------------------------------------------------------


async def test_templates_are_forgotten_when_the_controller_is_gone_for_long() -> None:
    clock, controller = ManualClock(), FakeController()
    templates = Templates(controller, clock=clock)
    controller.put_templates(PICKS)
    running = asyncio.get_running_loop().create_task(templates.run())
    try:
        async with asyncio.timeout(20):
            while templates.of("picks") is None:
                await asyncio.sleep(0.005)
            controller.lose()
            waited = 0.0
            while templates.of("picks") is not None:
                await asyncio.sleep(0.001)
                clock.advance(1)
                waited += 1
            assert waited > FORGET_S
            controller.reachable = True
            while templates.of("picks") is None:
                await asyncio.sleep(0.001)
                clock.advance(1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_controller_counts_as_reached_when_its_first_templates_were_read() -> None:
    clock, controller = ManualClock(), FakeController()
    controller.put_templates(PICKS)
    begun, go_on = threading.Event(), threading.Event()

    def slowly(name: str, text: str) -> TemplateInForce:
        begun.set()
        assert go_on.wait(20)
        return read_template(name, text)

    templates = Templates(controller, clock=clock, read=slowly)
    running = asyncio.get_running_loop().create_task(templates.run())
    try:
        async with asyncio.timeout(20):
            await asyncio.to_thread(begun.wait)
            assert not templates.reached
            go_on.set()
            while not templates.reached:
                await asyncio.sleep(0.001)
            assert templates.of("picks") is not None
            controller.lose()
            while templates.reached:
                await asyncio.sleep(0.001)
    finally:
        go_on.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# -- headers -----------------------------------------------------------------------------------------------


def test_a_response_says_whose_fill_it_was() -> None:
    headers = dict(outcome_headers(Report(Outcome.PROMOTED, "r", branch=BranchId(b"\x01\x02"))))
    assert headers[b"x-dynbranch-branch"] == b"0102" and headers[b"x-dynbranch-saved-ms"] == b"0.0"
    streamed = dict(outcome_headers(Report(Outcome.ADOPTED, "r", branch=BranchId(b"\x01"))))
    assert b"x-dynbranch-saved-ms" not in streamed
