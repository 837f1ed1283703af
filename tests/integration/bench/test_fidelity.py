"""A tenth of the benchmark of fidelity, and what it would find."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from dynbranch.bench import fidelity
from dynbranch.bench import fidelity_reading as reading


@pytest.mark.promise("H.fidelity")
def test_an_answer_is_one_however_it_is_asked_for_and_wherever_it_comes_from() -> None:
    measured = fidelity.measure(lambda *_: None, quick=True)
    assert not measured.failures, measured.raw["differences"]
    assert measured.figures["stream_equals_plain_share"].value == 1.0
    assert measured.figures["hit_promotion_and_miss_alike_share"].value == 1.0


def test_every_protocol_has_forty_cases_and_every_answer() -> None:
    cases = list(fidelity.cases())
    counts = Counter(case.protocol.name for case in cases)
    assert len(counts) == 3 and min(counts.values()) >= 40
    for protocol in fidelity.PROTOCOLS:
        own = [case for case in cases if case.protocol is protocol]
        assert {case.told.name for case in own} == {told.name for told in fidelity.TOLD}
        assert {case.asked.name for case in own} == {asked.name for asked in protocol.corpus}
    bodies = [json.dumps(case.body(0, stream=False)) for case in cases]
    assert len(set(bodies)) == len(bodies)


CHAT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'


def test_a_difference_is_seen() -> None:
    plain = b'{"model":"m","choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'
    done = b"data: [DONE]\n\n"
    assert reading.chat_streamed(CHAT + done) == reading.chat_plain(plain)
    assert reading.chat_streamed(CHAT.replace(b'"a"', b'"b"') + done) != reading.chat_plain(plain)
    assert reading.chat_streamed(CHAT.replace(b'"stop"', b'"length"') + done) != reading.chat_plain(plain)
    for broken in (CHAT, CHAT + done[:-1], CHAT + b"data: {}"):
        with pytest.raises(reading.Unreadable):
            reading.chat_streamed(broken)


def test_a_stream_of_responses_that_ends_in_something_else_is_no_answer() -> None:
    item = {"id": "msg_1", "type": "message", "content": [{"type": "output_text", "text": "a"}]}
    usage = {"input_tokens": 1, "input_tokens_details": {}, "output_tokens": 1}

    def stream(delta: str, item_told: object) -> bytes:
        events = [
            {"type": "response.output_text.delta", "item_id": "msg_1", "delta": delta},
            {"type": "response.output_item.done", "item": item_told},
            {"type": "response.completed", "response": {"output": [item], "usage": usage}},
        ]
        return b"".join(
            f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n".encode()
            for number, event in enumerate(events)
        )

    assert reading.responses_streamed(stream("a", item))["output"][0]["content"] == item["content"]
    for body in (stream("b", item), stream("a", {**item, "content": []}), stream("a", item)[:-60]):
        with pytest.raises(reading.Unreadable):
            reading.responses_streamed(body)
