"""Clients that break HTTP, dawdle, or vanish: a clear error, nobody else waits, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from dynbranch.engine_agent.fake import Script, text_chunks
from integration.gateway.world import GREEDY, Plan, World, eventually, running_world
from integration.hostile.conftest import SHORT
from integration.hostile.wire import BODY, CHAT, PLAIN, all_is_well, connected, echo, listen, reset, say

LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = CHAT + b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def with_header(header: bytes) -> bytes:
    return CHAT + LENGTH + header + b"\r\n\r\n" + BODY


REFUSED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), "invalid_http"),
    "HTTP/2 by prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), "invalid_http"),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", "invalid_http"),
    "a bare line feed in a value": (with_header(b"x-a: b\x00c"), "invalid_http"),
    "a control byte in a value": (with_header(b"x-a: b\x01c"), "invalid_http"),
    "a control byte in a name": (with_header(b"x-\x01a: b"), "invalid_http"),
    "a blank before the colon": (with_header(b"content-length : 1"), "invalid_http"),
    "a folded header": (with_header(b"x-a: b\r\n c"), ""),
    "a header of 70 kB": (with_header(b"x-a: " + b"b" * 70_000), "headers_too_large"),
    "a header of 1 MB": (with_header(b"x-a: " + b"b" * 1_000_000), "headers_too_large"),
    "a path of 1 MB": (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", "headers_too_large"),
    "20,000 headers": (with_header(b"\r\n".join(b"x-%d: 1" % i for i in range(20_000))), "headers_too_large"),
    "a workflow twice": (
        with_header(b"x-dynbranch-workflow: a\r\nx-dynbranch-workflow: b"),
        "repeated_header",
    ),
    "authorization twice": (
        with_header(b"authorization: Bearer a\r\nAuthorization: Bearer b"),
        "repeated_header",
    ),
    "host twice": (with_header(b"host: y"), "repeated_header"),
    "content-type twice": (with_header(b"content-type: a\r\ncontent-type: b"), "repeated_header"),
    "an agent of 300 characters": (with_header(b"x-dynbranch-agent: " + b"a" * 300), "invalid_identity"),
    "an agent in UTF-8": (with_header("x-dynbranch-agent: ü".encode()), "header_not_ascii"),
    "a read of nothing": (with_header(b"x-dynbranch-reads: nothing"), "invalid_reads"),
    "a read of 10^5 digits": (with_header(b"x-dynbranch-reads: s/k=1." + b"1" * 10_000), "invalid_reads"),
    "1,001 reads": (
        with_header(b"x-dynbranch-reads: " + b",".join(b"s/%d" % i for i in range(1001))),
        "too_many_reads",
    ),
    "content-length twice": (with_header(LENGTH.strip()), "invalid_http"),
    "two content-lengths": (with_header(b"content-length: 5"), "invalid_http"),
    "a negative content-length": (CHAT + b"content-length: -5\r\n\r\n" + BODY, "invalid_http"),
    "a content-length with a sign": (CHAT + b"content-length: +5\r\n\r\n" + BODY, "invalid_http"),
    "a content-length of 10^5 digits": (
        CHAT + b"content-length: " + b"9" * 60_000 + b"\r\n\r\n",
        "invalid_http",
    ),
    "a content-length of 10 TB": (CHAT + b"content-length: 9999999999999\r\n\r\n" + BODY, "body_too_large"),
    "length and chunks": (CHUNKED + LENGTH + b"\r\n" + CHUNKS, "invalid_http"),
    "a chunk size that is none": (CHUNKED + b"\r\nzz\r\n" + BODY, "invalid_http"),
    "a negative chunk": (CHUNKED + b"\r\n-5\r\n" + BODY, "invalid_http"),
    "a chunk size of 10^3 digits": (CHUNKED + b"\r\n" + b"f" * 1000 + b"\r\n" + BODY, "invalid_http"),
    "a chunk longer than it says": (CHUNKED + b"\r\n5\r\n" + BODY + b"\r\n0\r\n\r\n", "invalid_http"),
    "chunked, then gzip": (CHAT + b"transfer-encoding: chunked, gzip\r\n\r\n" + CHUNKS, "invalid_http"),
    "chunk extensions without end": (CHUNKED + b"\r\n1;" + b"x" * 300_000, "headers_too_large"),
    "trailers without end": (CHUNKED + b"\r\n" + CHUNKS[:-2] + b"x: y\r\n" * 60_000, "headers_too_large"),
    "empty lines without end": (b"\r\n" * 200_000, "headers_too_large"),
    "a shorter content-length": (CHAT + b"content-length: 5\r\n\r\n" + BODY, "invalid_json"),
    "a longer content-length": (CHAT + b"content-length: 5000\r\n\r\n" + BODY, "body_timeout"),
    "a head without end": (CHAT + b"x-a: b", "head_timeout"),
    "no body where one is due": (CHAT + b"\r\n", "invalid_json"),
    "an unknown path": (b"GET /%00%ff HTTP/1.1\r\n\r\n", "unknown_path"),
    "no such method": (b"BREW /v1/models HTTP/1.1\r\n\r\n", "invalid_http"),
    "TRACE": (b"TRACE /healthz HTTP/1.1\r\n\r\n", "method_not_allowed"),
    "CONNECT": (b"CONNECT x:1 HTTP/1.1\r\n\r\n", "invalid_http"),
    "OPTIONS": (b"OPTIONS /v1/chat/completions HTTP/1.1\r\n\r\n", "method_not_allowed"),
    "an encoded slash": (b"POST /v1%2Fchat/completions/x HTTP/1.1\r\ncontent-length: 0\r\n\r\n", "no_engine"),
    "dots": (b"GET /v1/../metrics HTTP/1.1\r\n\r\n", "no_engine"),
}


@pytest.mark.parametrize(("raw", "code"), REFUSED.values(), ids=REFUSED.keys())
async def test_is_refused_in_the_shape_of_the_api(world: World, raw: bytes, code: str) -> None:
    (first, *_) = await say(world, raw)
    assert 400 <= first.status < 600 or not code
    assert first.code == code or not code
    assert first.headers["content-type"] == "application/json"
    assert not world.engine.orders or not code


SERVED = {
    "in chunks": CHUNKED + b"\r\n" + CHUNKS,
    "in chunks of one byte": CHUNKED + b"\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n",
    "chunk extensions": CHUNKED + b"\r\n%x;a=b\r\n%s\r\n0;c\r\n\r\n" % (len(BODY), BODY),
    "with trailers": CHUNKED + b"\r\n" + CHUNKS[:-2] + b"x-a: b\r\nhost: y\r\nx-dynbranch-agent: z\r\n\r\n",
    "HTTP/1.0": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "absolute form": PLAIN.replace(b"POST /", b"POST http://elsewhere:81/"),
    "an encoded path": PLAIN.replace(b"/chat/", b"/%63h%61t/"),
    "a query": PLAIN.replace(b"completions", b"completions?a=b&c=%ff"),
    "Expect": with_header(b"expect: 100-continue"),
    "h2c offered": with_header(
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"
    ),
    "a websocket offered": with_header(
        b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13"
    ),
    "connection: close": with_header(b"connection: close"),
    "a huge cookie": with_header(b"cookie: " + b"c" * 60_000),
    "reads over two headers": with_header(b"x-dynbranch-reads: s/1\r\nx-dynbranch-reads: s/2"),
    "traceparent twice": with_header(b"traceparent: x\r\ntraceparent: 00-%s-%s-01" % (b"a" * 32, b"b" * 16)),
    "lines before it": b"\r\n\r\n" + PLAIN,
}


@pytest.mark.parametrize("raw", SERVED.values(), ids=SERVED.keys())
async def test_odd_but_right(world: World, raw: bytes) -> None:
    if b"100-continue" in raw:
        async with connected(world) as (reader, writer):
            head, _, body = raw.partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            (reply,) = await listen(reader)
    else:
        (reply,) = await say(world, raw)
    assert reply.status == 200 and reply.text == echo(world.engine.orders[0].body)
    assert world.csl.demands[0].identity.agent_id == "", "a trailer is no header"


async def test_byte_by_byte(world: World) -> None:
    (reply,) = await say(world, *(bytes([byte]) for byte in PLAIN))
    assert reply.status == 200


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/nothing", "/metrics"])
async def test_head_has_no_body(world: World, path: str) -> None:
    heads = await say(world, b"HEAD %s HTTP/1.1\r\n\r\n" % path.encode() * 2, expect=2, method="HEAD")
    assert [head.body for head in heads] == [b"", b""]


async def test_expect_is_not_answered_when_the_head_is_refused(world: World) -> None:
    (reply,) = await say(world, CHAT + b"expect: 100-continue\r\ncontent-length: 99999999999\r\n\r\n")
    assert reply.code == "body_too_large"


async def test_an_unwanted_body_is_swallowed_so_that_its_error_is_seen(world: World) -> None:
    """The answer comes before the body has been sent, and the connection lives on."""
    body = b"x" * 3_000_000
    raw = b"POST /nowhere HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    replies = await say(world, raw + raw + PLAIN, expect=3)
    assert [reply.code for reply in replies] == ["unknown_path", "unknown_path", "ok"]


async def test_an_unwanted_body_that_does_not_end_is_cut(world: World) -> None:
    async with connected(world) as (reader, writer):
        writer.write(b"POST /nowhere HTTP/1.1\r\ncontent-length: 60000000\r\n\r\nxx")
        (reply,) = await listen(reader)
        assert reply.code == "unknown_path"
        assert await reader.read() == b"", "the server closes"


async def test_pipelined_requests_are_answered_in_order(world: World) -> None:
    bodies = [json.dumps({**GREEDY, "seed": seed}).encode() for seed in range(20)]
    raw = b"".join(CHAT + b"content-length: %d\r\n\r\n" % len(body) + body for body in bodies)
    replies = await say(world, raw + b"GET /healthz HTTP/1.1\r\n\r\n", expect=21)
    assert [reply.text for reply in replies[:20]] == [echo(order.body) for order in world.engine.orders]
    assert replies[20].status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_rubbish_behind_a_request_never_lands_in_its_answer(world: World, stream: bool) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(text_chunks((echo(order.body),)), gate=gate)
    body = json.dumps({**GREEDY, "stream": stream}).encode()
    async with connected(world) as (reader, writer):
        writer.write(CHAT + b"content-length: %d\r\n\r\n" % len(body) + body)
        await eventually(lambda: world.engine.running)
        writer.write(b"\x00rubbish\r\n\r\n")
        await asyncio.sleep(0.05)
        gate.set()
        replies = await listen(reader, expect=2)
    assert [reply.status for reply in replies] == [200, 400]
    assert echo(world.engine.orders[0].body).encode() in replies[0].body


async def test_a_malformed_body_behind_a_request(world: World) -> None:
    replies = await say(world, PLAIN + CHUNKED + b"\r\nzz\r\n", expect=2)
    assert [reply.code for reply in replies] == ["ok", "invalid_http"]


@pytest.mark.promise("I4")
async def test_a_client_that_leaves_with_requests_in_the_pipe(world: World) -> None:
    world.engine.writer = lambda order: Script(gate=asyncio.Event())
    async with connected(world) as (_, writer):
        writer.write(PLAIN)
        await eventually(lambda: world.engine.running)
        writer.write(b"GET /hea")
        await asyncio.sleep(0.02)
        reset(writer)
    await eventually(lambda: not world.engine.running)
    world.engine.writer = lambda order: Script(items=text_chunks((echo(order.body),)))


@pytest.mark.promise("I4")
@pytest.mark.parametrize("leave", ["reset", "finish"])
@pytest.mark.parametrize("sent", [20, len(PLAIN) - 5, len(PLAIN)])
async def test_half_open(world: World, leave: str, sent: int) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(text_chunks((echo(order.body),)), gate=gate)
    async with connected(world) as (_, writer):
        writer.write(PLAIN[:sent])
        await asyncio.sleep(0.02)
        reset(writer) if leave == "reset" else writer.write_eof()
        await eventually(lambda: not world.engine.running and not len(world.gateway.in_flight))
    gate.set()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_does_not_read(stream: bool) -> None:
    """Neither a stream nor a whole answer is kept for it for ever."""
    async with running_world(Plan(settings={**SHORT, "stall_s": 0.2})) as world:
        text = "x" * 100_000
        world.engine.writer = lambda order: Script(items=text_chunks([text] * 200))
        body = json.dumps({**GREEDY, "stream": stream}).encode()
        async with connected(world) as (reader, writer):
            writer.transport.pause_reading()
            writer.write(CHAT + b"content-length: %d\r\n\r\n" % len(body) + body)
            await eventually(lambda: world.engine.orders)
            await eventually(lambda: not len(world.gateway.in_flight))
            assert reader.at_eof() is False
        world.engine.writer = lambda order: Script(items=text_chunks((echo(order.body),)))
        await all_is_well(world)


async def test_slow_heads_and_bodies(world: World) -> None:
    """A byte now and then keeps nothing open, and holds up nobody."""

    async def dawdle(raw: bytes) -> str:
        async with connected(world) as (reader, writer):
            heard = asyncio.ensure_future(listen(reader))
            for byte in raw:
                if heard.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            return (await heard)[0].code

    async with asyncio.TaskGroup() as tasks:
        heads = [tasks.create_task(dawdle(CHAT + b"x" * 200)) for _ in range(20)]
        bodies = [
            tasks.create_task(dawdle(CHAT + b"content-length: 500\r\n\r\n" + b"x" * 200)) for _ in range(2)
        ]
        for seed in range(20):
            assert (await world.chat(seed=seed)).status == 200
    assert {task.result() for task in heads} == {"head_timeout"}
    assert {task.result() for task in bodies} <= {"head_timeout", "body_timeout"}


async def test_a_thousand_idle_connections(world: World) -> None:
    async with AsyncExitStack() as stack:
        for number in range(1000):
            _, writer = await stack.enter_async_context(connected(world))
            if number % 2:
                writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await world.chat()).status == 200
        await all_is_well(world)


async def test_beyond_the_bound_the_longest_waiting_connection_gives_way() -> None:
    async with (
        running_world(Plan(settings={**SHORT, "max_connections": 20})) as world,
        AsyncExitStack() as stack,
    ):
        idle = [await stack.enter_async_context(connected(world)) for _ in range(40)]
        assert (await world.chat()).status == 200
        reader, writer = idle[-1]
        writer.write(PLAIN)
        assert (await listen(reader))[0].status == 200, "the newest ones stay"
        assert await idle[0][0].read() == b""


async def test_beyond_the_bound_with_all_at_work_a_connection_is_refused() -> None:
    async with (
        running_world(Plan(settings={**SHORT, "max_connections": 3})) as world,
        AsyncExitStack() as stack,
    ):
        gate = asyncio.Event()
        world.engine.writer = lambda order: Script(gate=gate)
        await world.http.close()
        busy = [await stack.enter_async_context(connected(world)) for _ in range(3)]
        for number, (_, writer) in enumerate(busy):
            body = json.dumps({**GREEDY, "seed": number}).encode()
            writer.write(CHAT + b"content-length: %d\r\n\r\n" % len(body) + body)
        await eventually(lambda: len(world.engine.running) == 3)
        (refused,) = await say(world, PLAIN)
        assert (refused.status, refused.code) == (503, "too_many_connections")
        gate.set()
        for reader, _ in busy:
            assert (await listen(reader))[0].status == 200


async def test_large_bodies_have_bounded_room_and_small_ones_do_not_wait_for_it() -> None:
    async with running_world(
        Plan(settings={**SHORT, "body_timeout_s": 20, "max_buffered_bytes": 1_000_000})
    ) as world:
        async with connected(world) as (_, first):
            first.write(CHAT + b"content-length: 1000000\r\n\r\n" + b" " * 900_000)
            await eventually(lambda: len(world.gateway.in_flight) == 1)
            await asyncio.sleep(0.1)
            second = CHAT + b"content-length: 1000000\r\n\r\n" + b" " * 1_000_000
            (refused,) = await say(world, second)
            assert (refused.status, refused.code) == (503, "overloaded")
            assert (await world.chat()).status == 200
        await eventually(lambda: not len(world.gateway.in_flight))
        (judged,) = await say(world, second)
        assert judged.code == "invalid_json", "the room is given back"
