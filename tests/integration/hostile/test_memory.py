"""The gateway as a process: what it holds stays bounded, and others are served all the while."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import Process
from pathlib import Path

import aiohttp
from integration.gateway.test_process import address_of, gateway, served_peers, until_ready
from integration.gateway.world import GREEDY
from integration.hostile.wire import CHAT, listen

MIB = 2**20
ROOM_MIB = 200
WORST_MIB = 1200
"""What the bodies in hand may come to: the room for them, and two being parsed, each many times its size."""


def memory_mib(process: Process, row: str) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(row))


def says(text: bytes, more: bytes = b"") -> bytes:
    head = b'{"model":"fake-model","temperature":0,"messages":[{"role":"user","content":"'
    return head + text + b'"}]' + more + b"}"


LARGE = {
    "a text": says(b"x" * 40_000_000),
    "no JSON": b"x" * 40_000_000,
    "a text that is cut": says(b"x" * 40_000_000)[:-5],
    "brackets": b"[" * 40_000_000,
    "too many values": says(b"", b',"x":[' + b"[]," * 13_000_000 + b"1]"),
    "almost too many values": says(b"", b',"x":[' + b"[]," * 249_000 + b"1]"),
    "almost too many objects": says(b"", b',"x":[' + b'{"a":1},' * 249_000 + b"1]"),
    "escapes": says(rb"\u0041" * 6_000_000),
    "one wide character": says(b"x" * 30_000_000 + "\U0001f600".encode()),
}


async def test_large_bodies_do_not_add_up() -> None:
    async with served_peers() as peers, aiohttp.ClientSession() as http:
        environ = {**peers.environ, "DYNBRANCH_GATEWAY_MAX_BUFFERED_BYTES": str(ROOM_MIB * MIB)}
        async with gateway(**environ) as process:
            url = await address_of(process)
            await until_ready(http, url)
            before = memory_mib(process, "VmRSS")
            async with asyncio.TaskGroup() as tasks:
                sent = [tasks.create_task(send(url, body)) for body in (*LARGE.values(), *LARGE.values())]
                endless = [tasks.create_task(never_end(url)) for _ in range(20)]
                served = 0
                while not all(task.done() for task in sent):
                    served += await ask(http, url, seed=served) == 200
                    await asyncio.sleep(0.01)
                for task in endless:
                    task.cancel()
            assert served > 0
            assert {status for task in sent if (status := task.result())} <= {200, 400, 503}
            assert memory_mib(process, "VmHWM") - before < WORST_MIB
            await at_rest(http, url)
            assert await ask(http, url, seed=-1) == 200


async def test_a_thousand_idle_connections_are_cheap() -> None:
    async with served_peers() as peers, aiohttp.ClientSession() as http, gateway(**peers.environ) as process:
        url = await address_of(process)
        await until_ready(http, url)
        before = memory_mib(process, "VmRSS")
        host, port = url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(1000)]
        for _, writer in idle:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nx-a: " + b"b" * 1000)
        for seed in range(20):
            assert await ask(http, url, seed=seed) == 200
        assert memory_mib(process, "VmRSS") - before < 150
        for _, writer in idle:
            writer.close()


async def send(url: str, body: bytes) -> int:
    """The status of the answer."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**27)
    try:
        writer.write(CHAT + b"content-length: %d\r\n\r\n" % len(body) + body)
        return (await listen(reader))[0].status
    finally:
        writer.close()


async def never_end(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(CHAT + b"transfer-encoding: chunked\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
    except ConnectionError:
        return
    finally:
        writer.close()


async def ask(http: aiohttp.ClientSession, url: str, *, seed: int) -> int:
    async with http.post(f"{url}/v1/chat/completions", data=json.dumps({**GREEDY, "seed": seed})) as response:
        await response.read()
        return response.status


async def at_rest(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            async with http.get(f"{url}/metrics") as response:
                if b"\ndynbranch_gateway_in_flight 0.0\n" in await response.read():
                    return
            await asyncio.sleep(0.05)
