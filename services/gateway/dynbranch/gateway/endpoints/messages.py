"""What the Messages protocol asks beside answers: how long a prompt is, and whether anybody is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynbranch.gateway.arrivals import Arrivals, OnlyRaw
from dynbranch.gateway.bypass import Bypass, engine_root
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.edge.routes import Handler
from dynbranch.gateway.protocols.anthropic.dialect import MessagesDialect
from dynbranch.gateway.protocols.anthropic.request import read_for_counting
from dynbranch.gateway.protocols.errors import JSON
from dynbranch.gateway.protocols.members import dump
from dynbranch.naming.document import Json, emit

_BYTES_PER_TOKEN = 4
_ASKED_OF_TEMPLATES = frozenset(
    {"add_generation_prompt", "chat_template_kwargs", "continue_final_message", "messages", "model", "tools"}
)


class MessagesEndpoints:
    """``raw`` serves what is to go to the engine as it came."""

    def __init__(
        self,
        *,
        arrivals: Arrivals,
        desk: Desk,
        bypass: Bypass,
        dialect: MessagesDialect,
        raw: Handler,
        stands_aside: Callable[[Exchange], bool],
        body_timeout_s: float,
        hides_keys: bool,
    ) -> None:
        self._arrivals = arrivals
        self._desk = desk
        self._bypass = bypass
        self._dialect = dialect
        self._raw = raw
        self._stands_aside = stands_aside
        self._body_timeout_s = body_timeout_s
        self._hides_keys = hides_keys

    async def root(self, exchange: Exchange, _: str) -> None:
        """Harnesses look whether the base address answers at all."""
        body = dump({"service": "dynbranch-gateway"})
        await exchange.respond(200, JSON, body, [(b"x-request-id", exchange.request_id.encode())])

    async def count_tokens(self, exchange: Exchange, rest: str) -> None:
        """By the engine's own tokenizer and template; where it shows neither, by the length of the text,
        which the response then says. Never a demand."""
        if self._stands_aside(exchange):
            await self._raw(exchange, rest)
            return
        body = await exchange.read_body(self._body_timeout_s)
        document = await self._desk.read(body, read_for_counting, body)
        value = document.value
        assert isinstance(value, dict)
        try:
            urls = self._arrivals.urls_of_served(str(value["model"]))
        except OnlyRaw:
            urls = self._arrivals.model_urls(str(value["model"]))
        headers = [(b"x-request-id", exchange.request_id.encode())]
        key = "" if self._hides_keys else self._dialect.headers(exchange.headers).get("authorization", "")
        count = await self._counted(urls, value, key)
        if count is None:
            count = -(-len(document.source) // _BYTES_PER_TOKEN)
            headers.append((b"x-dynbranch-estimated", b"1"))
        await exchange.respond(200, JSON, dump({"input_tokens": count}), headers)

    async def _counted(self, urls: Sequence[str], chat: dict[str, Json], key: str) -> int | None:
        asked: dict[str, Json] = {name: chat[name] for name in chat if name in _ASKED_OF_TEMPLATES}
        for url in urls:
            root = engine_root(url)
            answer = await self._bypass.ask(f"{root}/tokenize", emit(asked).encode(), key)
            if isinstance(answer, dict) and isinstance(answer.get("count"), int):
                return int(answer["count"])
            # llama-server tokenizes texts alone, and renders apart.
            rendered = await self._bypass.ask(f"{root}/apply-template", emit(asked).encode(), key)
            if isinstance(rendered, dict) and isinstance(rendered.get("prompt"), str):
                text = dump({"content": rendered["prompt"], "add_special": True, "parse_special": True})
                answer = await self._bypass.ask(f"{root}/tokenize", text, key)
                if isinstance(answer, dict) and isinstance(answer.get("tokens"), list):
                    return len(answer["tokens"])
        return None
