"""Bodies that no honest client sends: a clear error or the right result, and nothing stored wrongly."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from integration.gateway.world import World
from integration.hostile.wire import echo, post

MODEL = b'"model":"fake-model"'
SAYS = b'{"role":"user","content":"%s"}'
DIGITS = b"7" * 100_000


def chat(messages: bytes = SAYS % b"hi", more: bytes = b"") -> bytes:
    return b'{%s,"temperature":0,"messages":[%s]%s}' % (MODEL, messages, more)


REFUSED = {
    "nothing": b"",
    "lone surrogate": chat(SAYS % rb"\ud800"),
    "lone low surrogate in a key": chat(more=rb',"\udc00":1'),
    "surrogates the wrong way round": chat(SAYS % rb"\ude00\ud83d"),
    "surrogate in utf-8": chat(SAYS % b"\xed\xa0\x80"),
    "overlong utf-8": chat(SAYS % b"\xc0\xaf"),
    "NaN": chat(more=b',"top_p":NaN'),
    "Infinity": chat(more=b',"x":[-Infinity]'),
    "duplicate key": chat(more=b',"temperature":1'),
    "duplicate key, escaped": chat(more=rb',"\u0074emperature":1'),
    "duplicate key, deep": chat(more=b',"x":[{"a":{"b":1,"b":1}}]'),
    "byte order mark": b"\xef\xbb\xbf" + chat(),
    "UTF-16": chat().decode().encode("utf-16"),
    "UTF-16 without a mark": chat().decode().encode("utf-16-le"),
    "UTF-32": chat().decode().encode("utf-32"),
    "NUL byte in a text": chat(SAYS % b"a\x00b"),
    "NUL byte at the end": chat() + b"\x00",
    "two values": chat() + chat(),
    "cut": chat()[:-1],
    "comments": b"/* */" + chat(),
    "arrays, 10^4 deep": chat(more=b',"x":' + b"[" * 10_000 + b"]" * 10_000),
    "objects, 10^4 deep": chat(more=b',"x":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "arrays, 10^6 deep and open": b"[" * 1_000_000,
    "a million values": chat(more=b',"x":[' + b"0," * 1_000_000 + b"0]"),
    "a number with a leading zero": chat(more=b',"seed":01'),
    "hexadecimal": chat(more=b',"seed":0x10'),
    "not an object": b"[1]",
    "no messages": b"{%s}" % MODEL,
    "messages not a list": b'{%s,"messages":{}}' % MODEL,
    "a count of 10^5 digits below zero": chat(more=b',"n":-' + DIGITS),
    "40 MB that are no JSON": b"x" * 40_000_000,
    "40 MB, cut at the end": chat(SAYS % (b"x" * 40_000_000))[:-3],
    "a key of 1 MB twice": chat(more=b',"%s":1,"%s":2' % (b"k" * 1_000_000, b"k" * 1_000_000)),
}

SERVED = {
    "escaped NUL": chat(SAYS % rb"a\u0000b"),
    "a pair of surrogates": chat(SAYS % rb"\ud83d\ude00"),
    "control characters, escaped": chat(SAYS % rb"\u0001\u001f\u007f\u0085\u2028"),
    "a seed of 10^5 digits": chat(more=b',"seed":' + DIGITS),
    "a fraction of 10^5 digits": chat(more=b',"top_p":0.' + DIGITS),
    "an exponent of 10^9": chat(more=b',"top_p":1e1000000000'),
    "an exponent of 10^5 digits": chat(more=b',"top_p":1e-' + DIGITS),
    "zero with a huge exponent": chat(more=b',"presence_penalty":0e999999999999999999999'),
    "10^5 messages": chat(b",".join([SAYS % b"hi"] * 100_000)),
    "a text of 40 MB": chat(SAYS % (b"x" * 40_000_000)),
    "a text of commas": chat(SAYS % (b"," * 2_000_000)),
    "10^5 unknown fields": chat(more=b"".join(b',"k%d":0' % i for i in range(100_000))),
    "blanks before and after": b" \t\r\n" * 1000 + chat() + b"\n" * 1000,
    "255 levels": chat(more=b',"x":' + b"[" * 255 + b"]" * 255),
    "an empty key": chat(more=b',"":1'),
    "__proto__": chat(more=b',"__proto__":{"temperature":1}'),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
async def test_is_refused_with_a_reason(world: World, body: bytes) -> None:
    answer = await post(world, body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert len(answer.error["message"]) < 500, "an error does not repeat what it was sent"
    assert not world.engine.orders and await world.entries() == 0


@pytest.mark.promise("I1")
@pytest.mark.parametrize("body", SERVED.values(), ids=SERVED.keys())
async def test_is_served_as_what_it_is(world: World, body: bytes) -> None:
    first = await post(world, body)
    assert first.status == 200 and first.text == echo(world.engine.orders[0].body)
    assert _spelled(world.engine.orders[0].body) == {
        **_spelled(body),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    second = await post(world, body)
    assert (second.outcome, second.text) == ("hit", first.text)


def _spelled(body: bytes) -> dict[str, Any]:
    """A body as values, its numbers as they are spelled."""
    value: dict[str, Any] = json.loads(body, parse_int=str, parse_float=str)
    return value


@pytest.mark.promise("I1")
async def test_near_misses_do_not_share_a_result(world: World) -> None:
    """Texts and numbers that some reader takes for one another."""
    texts = [
        b"a",
        rb"a\u0000",
        b" a",
        b"A",
        "\uff41".encode(),
        "a\u0301".encode(),
        "\u00e1".encode(),
        rb"\/a",
    ]
    numbers = [b"1", b"1.0000000000000000000001", b"1e1000", b"1e1001", b"0.1", b"0.1000000000000000055"]
    bodies = [chat(SAYS % text) for text in texts] + [chat(more=b',"top_p":' + number) for number in numbers]
    answers = [await post(world, body) for body in bodies]
    assert [answer.outcome for answer in answers] == ["miss"] * len(bodies)
    assert len({answer.text for answer in answers}) == len(bodies)


async def test_a_compressed_body_is_refused_unread(world: World) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    for coding in ("gzip", "deflate", "br", "gzip, gzip", "identity, gzip"):
        answer = await post(world, bomb, {"content-encoding": coding})
        assert (answer.status, answer.error["code"]) == (415, "unsupported_encoding")
    assert (await post(world, gzip.compress(chat()))).status == 400


async def test_the_body_and_not_its_type_says_what_it_is(world: World) -> None:
    for content_type in ("text/plain", "application/xml", "application/json; charset=utf-16", "a", ""):
        answer = await post(world, chat(), {"content-type": content_type})
        assert answer.status == 200 and answer.text == echo(world.engine.orders[0].body)
        refused = await post(world, chat().decode().encode("utf-16"), {"content-type": content_type})
        assert refused.status == 400


@pytest.mark.parametrize(
    "path", ["/dynbranch/v1/writes", "/dynbranch/v1/explain", "/dynbranch/v1/tools/search"]
)
async def test_every_endpoint_that_reads_json(world: World, path: str) -> None:
    for kind, body in REFUSED.items():
        if (path.endswith("search") and kind in INPUTS_OF_A_TOOL) or len(body) > 10_000_000:
            continue
        answer = await post(world, body, path=path)
        assert answer.status == 400 and len(answer.error["message"]) < 500, kind
    assert (await world.csl.inner.stats(timeout_s=1)).writes == 0


INPUTS_OF_A_TOOL = {
    "not an object",
    "no messages",
    "messages not a list",
    "a count of 10^5 digits below zero",
}


async def test_a_malformed_write_writes_nothing(world: World) -> None:
    many = ["s/k"] * 10_001
    long = ["s/" + "k" * 2000]
    for records in (
        [],
        [""],
        ["nosource"],
        ["s/"],
        ["/k"],
        ["s/\0"],
        long,
        ["ü/k"],
        [1],
        [["s/k"]],
        many,
        "s/k",
        None,
    ):
        answer = await world.post("/dynbranch/v1/writes", {"records": records})
        assert answer.status == 400 and answer.error["code"] == "invalid_write"
    assert (await world.csl.inner.stats(timeout_s=1)).writes == 0
