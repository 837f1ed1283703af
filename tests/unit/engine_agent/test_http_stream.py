"""An engine's answer over real connections: every byte once and in order, however it is cut and held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.http_stream import MAX_HELD_BYTES, Answer, BrokenAnswer, EngineStreams

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def piece(number: int) -> bytes:
    return b'data: {"piece":"%d","finish_reason":null}\n\n' % number


PIECES = [piece(number) for number in range(12)]
END = b'data: {"piece":"","finish_reason":"stop"}\n\n'


@asynccontextmanager
async def an_engine(writes: Sequence[bytes]) -> AsyncGenerator[EngineStreams]:
    """Writes these to whoever asks, each by itself, and hangs up."""

    answering = set[asyncio.Task[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for data in writes:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0.001)
            if not writes[-1].endswith((LAST, PIECES[-1] + b"\r\n")):
                await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    streams = EngineStreams(f"http://{host}:{port}", Timeouts())
    try:
        yield streams
    finally:
        streams.close()
        server.close()
        await asyncio.gather(*answering)


def taker(taken: list[bytes], until: bytes) -> Callable[[bytes], bool]:
    def take(data: bytes) -> bool:
        taken.append(data)
        return until in data

    return take


async def read(answer: Answer, until: bytes = END) -> bytes:
    taken: list[bytes] = []
    try:
        await answer.taken_by(taker(taken, until))
    finally:
        answer.close()
    return b"".join(taken)


async def test_pieces_arrive_once_and_in_order() -> None:
    writes = [HEAD, *map(chunk, PIECES), chunk(END), LAST]
    async with an_engine(writes) as streams:
        answers = await asyncio.gather(*(streams.post("/", {}, b"") for _ in range(8)))
        got = await asyncio.gather(*map(read, answers))
    assert got == [b"".join(PIECES) + END] * 8


async def test_parts_are_all_given_too() -> None:
    async with an_engine([HEAD, *map(chunk, PIECES), LAST]) as streams:
        answer = await streams.post("/", {}, b"")
        got = b"".join([part async for part in answer.parts()])
        answer.close()
    assert got == b"".join(PIECES)


async def test_what_was_held_is_given_before_the_loss_is_told() -> None:
    taken: list[bytes] = []
    async with an_engine([HEAD, *map(chunk, PIECES)]) as streams:
        answer = await streams.post("/", {}, b"")
        with pytest.raises(BrokenAnswer):
            await answer.taken_by(taker(taken, END))
        answer.close()
    assert b"".join(taken) == b"".join(PIECES)


async def test_a_piece_cut_anywhere_is_the_same() -> None:
    whole = b"".join([HEAD, *map(chunk, PIECES), chunk(END), LAST])
    for size in (7, 31, 64, 200):
        writes = [whole[at : at + size] for at in range(0, len(whole), size)]
        async with an_engine(writes) as streams:
            assert await read(await streams.post("/", {}, b"")) == b"".join(PIECES) + END


async def test_large_pieces_arrive_too() -> None:
    large = [b"data: " + b"x" * (2 * MAX_HELD_BYTES) + each for each in PIECES]
    async with an_engine([HEAD, *map(chunk, large), chunk(END), LAST]) as streams:
        assert await read(await streams.post("/", {}, b"")) == b"".join(large) + END


async def test_closing_lets_go_of_what_is_held() -> None:
    taken: list[bytes] = []
    async with an_engine([HEAD, *map(chunk, PIECES), chunk(END), LAST]) as streams:
        answer = await streams.post("/", {}, b"")
        await answer.taken_by(taker(taken, PIECES[4]))
        answer.close()
        before = list(taken)
        await asyncio.sleep(0.03)
    assert taken == before


async def test_an_answer_that_still_ends_is_closed_with_all_others() -> None:
    async with an_engine([HEAD, *map(chunk, PIECES), chunk(END)]) as streams:
        streams.kept = True
        answer = await streams.post("/", {}, b"")
        await answer.taken_by(taker([], END))
        answer.let_end()
        # The engine waits for this client to go: it goes only when the connection is closed.
        streams.close()
