"""A small HTTP server that speaks like an OpenAI-compatible engine and does what its scripts say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from dynbranch.engine_agent.fake import Script

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"

Handler = Callable[[web.Request, dict[str, Any]], Any]


class StubEngine:
    """Behaves as llama-server at its edges: /props, /apply-template, /metrics, and streams that stop when the
    client goes. ``raw`` replaces the answer to a chat request altogether."""

    def __init__(self, *, slots: int = 4, model: str = "stub-model") -> None:
        self.slots = slots
        self.model = model
        self.template = TEMPLATE
        self.script: Callable[[dict[str, Any]], Script] = lambda body: Script()
        self.raw: Handler | None = None
        self.running = 0
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.started = 0
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens, on the same port as before when it was stopped."""
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/props", self._props)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/apply-template", self._apply_template)
        app.router.add_post("/v1/chat/completions", self._chat)
        self.started += 1
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """As a crash: every connection is cut."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for connection in list(runner.server.connections) if runner.server else []:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    async def _props(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "total_slots": self.slots,
                "chat_template": self.template,
                "default_generation_settings": {"params": {"temperature": 0.8, "top_k": 40}, "n_ctx": 512},
                "model_ftype": "F16",
                "build_info": "stub",
                "media_marker": f"start {self.started}",
            }
        )

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model, "aliases": ["stub-alias"]}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text=f"llamacpp:requests_processing {self.running}\nllamacpp:requests_deferred 0\n"
        )

    async def _apply_template(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        return web.json_response({"prompt": "".join(_rendered(message) for message in messages)})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        source = await request.read()
        self.bodies.append(source)
        self.headers.append({key.lower(): value for key, value in request.headers.items()})
        body = json.loads(source)
        self.running += 1
        try:
            if self.raw is not None:
                answer: web.StreamResponse = await self.raw(request, body)
                return answer
            return await self._play(request, self.script(body))
        finally:
            self.running -= 1

    async def _play(self, request: web.Request, script: Script) -> web.StreamResponse:
        if script.gate is not None and not script.items:
            await script.gate.wait()
        if script.fail_after == 0:
            return _refusal(request, script)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, item in enumerate(script.items):
            if number == 0 and script.gate is not None:
                await script.gate.wait()
            await asyncio.sleep(script.between_s if number else script.first_s)
            if number == script.fail_after:
                return cut(request, response)
            await response.write(b"data: " + item + b"\n\n")
        if script.fail_after == len(script.items):
            return cut(request, response)
        await response.write(b"data: [DONE]\n\n")
        return response


def cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """The connection breaks, as when a process dies."""
    if request.transport is not None:
        request.transport.abort()
    return response


def _refusal(request: web.Request, script: Script) -> web.StreamResponse:
    if script.failure.http_status == 0:
        return cut(request, web.Response())
    return web.Response(
        status=script.failure.http_status,
        body=script.failure.body,
        headers={"content-type": script.failure.content_type},
    )


def _rendered(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, list):
        content = "".join(block["text"] for block in content)
    return f"<{message['role']}>{content}"
