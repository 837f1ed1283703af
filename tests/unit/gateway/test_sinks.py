"""What a client is sent, and when it counts as sent."""

from __future__ import annotations

from typing import Any

from dynbranch.engine_agent.fake import text_chunks
from dynbranch.gateway.core.outcome import Outcome, Report
from dynbranch.gateway.edge.exchange import ClientSide, Exchange
from dynbranch.gateway.edge.inflight import BodyRoom
from dynbranch.gateway.protocols.chat import ChatForm
from dynbranch.gateway.protocols.chunk_relay import ResponseIdentity
from dynbranch.gateway.sinks import StreamSink
from dynbranch.runtime.clock import SystemClock

TEXT = text_chunks(("a",))[:1]


def stream(sent: list[bytes]) -> tuple[Exchange, StreamSink]:
    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    def write_now(part: bytes) -> bool:
        sent.append(part)
        return True

    def respond_now(status: int, headers: Any, body: bytes) -> bool:
        raise AssertionError("a stream is not a whole response")

    side = ClientSide(write_now, respond_now)
    scope: Any = {"method": "POST", "path": "/", "headers": [], ClientSide.KEY: side}
    exchange = Exchange(
        scope,
        receive,
        send,
        clock=SystemClock(),
        request_id="req_1",
        max_body_bytes=1,
        room=BodyRoom(1),
        free_body_bytes=1,
    )

    def report() -> Report:
        return Report(Outcome.MISS, "req_1")

    return exchange, StreamSink(exchange, ChatForm(ResponseIdentity("mine", 1), include_usage=False), report)


async def test_the_first_part_of_an_answer_is_never_sent_unheard() -> None:
    """Whoever drives the request must know from when on no other engine may begin the answer anew."""
    sent: list[bytes] = []
    exchange, sink = stream(sent)
    assert not await sink.items((b'{"choices":[],"usage":{"prompt_tokens":1}}',))
    assert exchange.when_idle is not None
    await exchange.when_idle()
    assert exchange.started and b"data:" not in b"".join(sent)
    assert not sink.items_now(TEXT)
    assert await sink.items(TEXT) and sink.items_now(TEXT)
    assert b"".join(sent).count(b"data: ") == 2
