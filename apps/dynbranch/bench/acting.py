"""Stub engines that play a model's part in the demo's flows at a stated pace, before the real services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

from dynbranch.demo.rehearsal import model_says
from dynbranch.demo.stack import TEMPLATES, Stack, StackOptions, running
from dynbranch.enginemodel.parameters import Parameters
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.matching import RequestView
from dynbranch.stub_engine.script import Reply
from dynbranch.stub_engine.settings import StubSettings

MODEL = "stub-model"
_FACTS = ("chat_template=toy", "weights=none")

Writer = Callable[[RequestView], Reply]


def acting(view: RequestView) -> Reply:
    """An answer that fits the request's schema; the same request gets the same one."""
    return Reply(text=model_says(view.body))


def cut_into(text: str, tokens: int) -> tuple[str, ...]:
    """The text in so many pieces, or in one a character where it is too short."""
    count = max(1, min(tokens, len(text)))
    cuts = [len(text) * place // count for place in range(count + 1)]
    return tuple(text[a:b] for a, b in pairwise(cuts))


@asynccontextmanager
async def acted(
    folder: Path,
    *,
    engines: int,
    latency: Parameters,
    writer: Writer,
    policy: str,
    settings: Mapping[str, str] | None = None,
    templates: Path = TEMPLATES,
    slots: int = 8,
) -> AsyncIterator[Stack]:
    """Every service as a process; the engines in this one."""
    async with AsyncExitStack() as owned:
        urls = []
        for _ in range(engines):
            engine = StubEngine(StubSettings(latency=latency, model=MODEL))
            engine.writer = writer
            await owned.enter_async_context(engine)
            urls.append(engine.url)
        options = StackOptions(
            state_dir=folder,
            engine_urls=tuple(urls),
            engine_facts=_FACTS,
            floor_gateway=True,
            policy=policy,
            settings={"DYNBRANCH_ENGINE_AGENT_SLOTS": str(slots), **(settings or {})},
            templates=templates,
        )
        yield await owned.enter_async_context(running(options))
