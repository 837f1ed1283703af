"""What a harness is told: the stream, the whole response and the recorded one are the same response. What
engines say is the corpus that Messages is held to as well."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.bench.corpus.answers import TOLD, items_of
from dynbranch.bench.corpus.shapes import Object, Told
from dynbranch.gateway.protocols.chunk_relay import MalformedItem
from dynbranch.gateway.protocols.responses.rendering import (
    END,
    Events,
    ResponseHead,
    ResponseRelay,
    whole_response,
)
from dynbranch.gateway.protocols.responses.request import read_responses
from dynbranch.naming.chunks import compact
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

VENDORS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
REPEATED = read_responses(b'{"model":"m","input":"hi"}').repeated


def head(**beside: Any) -> ResponseHead:
    return ResponseHead("resp_1", 17, "m", b"name", REPEATED.fields, **beside)


def streamed(
    items: tuple[bytes, ...], of: ResponseHead | None = None, *, cached: bool = False, step: int = 1
) -> bytes:
    relay = ResponseRelay(of or head(), Events(), cached=cached)
    parts = [relay.events(items[at : at + step]) for at in range(0, len(items), step)]
    return b"".join([*parts, relay.end()])


def events_in(body: bytes) -> list[Object]:
    assert body.endswith(END)
    events = []
    for number, part in enumerate(body.removesuffix(END).split(b"\n\n")[:-1]):
        named, _, data = part.partition(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert named == b"event: " + event["type"].encode()
        assert event["sequence_number"] == number
        VENDORS.validate_python(event)
        events.append(event)
    return events


def whole(items: tuple[bytes, ...], of: ResponseHead | None = None, *, cached: bool = False) -> Object:
    response: Object = json.loads(whole_response(items, of or head(), cached=cached))
    Response.model_validate(response)
    return response


def shown(output: list[Object]) -> list[Object]:
    """In the words of the corpus, but for the arguments of calls, which stay as the model wrote them."""
    blocks: list[Object] = []
    for item in output:
        match item:
            case {"type": "message", "content": [{"type": "output_text", "text": text}]}:
                blocks.append({"type": "text", "text": text})
            case {"type": "message", "content": [{"type": "refusal", "refusal": text}]}:
                blocks.append({"type": "text", "text": text})
            case {"type": "reasoning", "content": [{"text": text}]}:
                blocks.append({"type": "thinking", "thinking": text})
            case {"type": "function_call", "name": name, "arguments": arguments}:
                blocks.append({"type": "tool_use", "name": name, "input": arguments})
    return blocks


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_what_the_harness_is_told(told: Told) -> None:
    response = whole(items_of(told))
    found = shown(response["output"])
    assert len(found) == len(told.content) == len(response["output"])
    for block, wanted in zip(found, told.content, strict=True):
        if wanted["type"] == "tool_use" and told.finish != "length":
            block = {**block, "input": json.loads(block["input"])}
        elif wanted["type"] == "tool_use":
            # What was cut stays as the model left it.
            block = {**block, "input": wanted["input"]}
        assert block == wanted
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(told.finish)
    assert response["status"] == ("incomplete" if why else "completed")
    assert response["incomplete_details"] == ({"reason": why} if why else None)
    fresh, cached, output = told.counts
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (fresh + cached, output)
    assert usage["input_tokens_details"]["cached_tokens"] == cached
    assert usage["total_tokens"] == fresh + cached + output


@pytest.mark.promise("H.responses")
@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_the_stream_ends_in_the_whole_response(told: Told, step: int) -> None:
    items = items_of(told)
    assert events_in(streamed(items, step=step))[-1]["response"] == whole(items)


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_the_vendors_client_puts_the_pieces_together(told: Told) -> None:
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    items = items_of(told)
    found: Any = None
    for event in events_in(streamed(items)):
        for handled in state.handle_event(VENDORS.validate_python(event)):
            found = getattr(handled, "response", found)
    assert shown(found.to_dict()["output"]) == shown(whole(items)["output"])


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_pieces_add_up_to_what_is_said_to_be_done(told: Told) -> None:
    grown: dict[int, str] = {}
    done: dict[int, str] = {}
    items: dict[int, Object] = {}
    is_open: int | None = None
    events = events_in(streamed(items_of(told)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    for event in events[2:-1]:
        kind, place = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert is_open is None and place == len(items) == len(grown)
            is_open, grown[place] = place, ""
            continue
        assert place == is_open
        if kind.endswith(".delta"):
            grown[place] += event["delta"]
        elif kind == "response.output_item.done":
            items[place], is_open = event["item"], None
        elif kind.endswith(("_part.added", "_part.done")):
            continue
        else:
            done[place] = event.get("text", event.get("arguments", event.get("refusal")))
    assert is_open is None and grown == done
    assert [items[place] for place in sorted(items)] == events[-1]["response"]["output"]


@pytest.mark.promise("C1.serve_a_hit")
@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_a_record_tells_what_the_engine_told(told: Told) -> None:
    items = items_of(told)
    live, recorded = whole(items), whole(compact(items), cached=True)
    assert events_in(streamed(compact(items), cached=True))[-1]["response"] == recorded
    counted, cached = live.pop("usage"), recorded.pop("usage")
    assert live == recorded
    assert (
        cached["input_tokens_details"]["cached_tokens"] == cached["input_tokens"] == counted["input_tokens"]
    )


def told_by(name: str) -> tuple[bytes, ...]:
    (told,) = [told for told in TOLD if told.name == name]
    return items_of(told)


def test_nothing_shows_before_the_model_speaks() -> None:
    """Until then another engine may still give the answer."""
    relay = ResponseRelay(head(), Events(), cached=False)
    items = told_by("a text")
    assert relay.events(items[:1]) == b""
    assert b"response.created" in relay.events(items[1:2])


def test_ids_of_calls_follow_from_the_name() -> None:
    def ids(seed: bytes) -> list[str]:
        of = ResponseHead("resp_1", 17, "m", seed, REPEATED.fields)
        return [item["call_id"] for item in whole(told_by("parallel calls"), of)["output"]]

    assert ids(b"a") == ids(b"a") and not set(ids(b"a")) & set(ids(b"b"))
    assert len(set(ids(b"a"))) == 2


def test_a_call_of_a_namespace_tells_it() -> None:
    of = head(namespaced={"read": ("crew", "look")})
    (item,) = whole(told_by("a call"), of)["output"]
    assert (item["namespace"], item["name"]) == ("crew", "look")
    events = events_in(streamed(told_by("a call"), of))
    assert all(event["item"]["namespace"] == "crew" for event in events if "output_item" in event["type"])


def test_sealed_reasoning_comes_back_to_the_model() -> None:
    response = whole(told_by("reasoning"), head(seals=True))
    reasoning = response["output"][0]
    assert events_in(streamed(told_by("reasoning"), head(seals=True)))[-1]["response"] == response
    del reasoning["content"]
    asked = {"model": "m", "input": [{"role": "user", "content": "hi"}, *response["output"]]}
    chat: Any = read_responses(json.dumps(asked).encode()).value
    assert chat["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "Hm."}


def test_an_answer_that_was_cut_says_where() -> None:
    response = whole(told_by("a call that was cut within a text"))
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["output"][0]["arguments"] == '{"a": {"b": [1, 2], "c": "half'


@pytest.mark.parametrize(
    "items",
    [
        (),
        (b"not json",),
        (b"[]",),
        (b'{"choices":[{"index":-1,"delta":{}}]}',),
        (b'{"choices":[],"usage":{}}',),
    ],
)
def test_what_is_no_answer_is_none(items: tuple[bytes, ...]) -> None:
    with pytest.raises(MalformedItem):
        whole_response(items, head(), cached=False)
    with pytest.raises(MalformedItem):
        streamed(items)
