"""What can be asked for: models and tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dynbranch.domain.engine import ModelDescription, ToolDescription
from dynbranch.gateway.directory import Directory
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.protocols.anthropic.models import model_info, model_list, speaks_messages
from dynbranch.gateway.protocols.errors import JSON, unknown_model
from dynbranch.gateway.protocols.members import dump


class CatalogueEndpoints:
    """``started_s``: what the API calls the creation time of a model; here, when this gateway came to know
    it."""

    def __init__(self, directory: Directory, *, started_s: int) -> None:
        self._directory = directory
        self._started_s = started_s

    async def models(self, exchange: Exchange, _: str) -> None:
        """In the shape of whose API is asked."""
        models = list(self._ready_models())
        if speaks_messages(exchange.headers):
            await _answer(exchange, model_list([_named(model) for model in models], self._started_s))
            return
        await _answer(exchange, {"object": "list", "data": [self._model(model) for model in models]})

    async def model(self, exchange: Exchange, name: str) -> None:
        for model in self._ready_models():
            if name == model.id or name in model.aliases:
                told = (
                    model_info(*_named(model), self._started_s)
                    if speaks_messages(exchange.headers)
                    else self._model(model)
                )
                await _answer(exchange, told)
                return
        raise unknown_model(name, sorted(model.id for model in self._ready_models()))

    async def tools(self, exchange: Exchange, _: str) -> None:
        tools = {
            tool.name: tool
            for agent in self._directory.agents
            if agent.available
            for tool, _digest in agent.tools.values()
            if isinstance(tool, ToolDescription)
        }
        await _answer(exchange, {"object": "list", "data": [_tool(tools[name]) for name in sorted(tools)]})

    def _ready_models(self) -> Iterator[ModelDescription]:
        seen: set[str] = set()
        for agent in self._directory.agents:
            for model in agent.description.models if agent.available and agent.description else ():
                if model.id not in seen:
                    seen.add(model.id)
                    yield model

    def _model(self, model: ModelDescription) -> dict[str, Any]:
        return {
            "id": model.id,
            "object": "model",
            "created": self._started_s,
            "owned_by": "dynbranch",
            "max_model_len": model.context_tokens or None,
            "aliases": list(model.aliases),
            "level": model.fingerprint.level.value,
            "not_reused_because": model.not_reusable_reason or None,
        }


def _named(model: ModelDescription) -> tuple[str, int]:
    return model.id, model.context_tokens


def _tool(tool: ToolDescription) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "source": tool.source or None,
        "freshness": tool.freshness.value or None,
    }


async def _answer(exchange: Exchange, value: dict[str, Any]) -> None:
    await exchange.respond(200, JSON, dump(value), [(b"x-request-id", exchange.request_id.encode())])
