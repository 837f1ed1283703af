"""Plays the demo's flows through a gateway, as a harness that keeps its connections open.

It sends exactly the bytes that a flow asks for. A person's pause before a pick is slept, and is no part of
any latency.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from dynbranch.demo.flows import Ask
from dynbranch.demo.harness import NOT_TOLD, OUTCOME_HEADER, ToolFailed
from dynbranch.demo.rehearsal import Performance

BRANCH_HEADER = "x-dynbranch-branch"
AHEAD = frozenset({"promoted", "adopted"})
"""The outcomes of requests whose work had begun before they came."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Step:
    """One request and its answer. ``begin_ms`` counts from the flow's begin, pauses included. ``result`` is
    everything that equality is about."""

    stage: str
    kind: str
    outcome: str
    begin_ms: float
    latency_ms: float
    request: bytes
    result: str
    text: str
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """One flow from its first request to its last answer; ``pauses_ms`` are those of a person."""

    workflow_type: str
    record: str
    workflow_id: str
    steps: tuple[Step, ...]
    whole_ms: float
    pauses_ms: float = 0.0
    began_unix_ms: float = 0.0

    @property
    def latency_ms(self) -> float:
        """What was waited for DynBranch or the engine."""
        return self.whole_ms - self.pauses_ms

    def equals(self, other: Played) -> bool:
        """The same requests, the same answers."""
        mine, others = (
            [(step.stage, step.request, step.result) for step in one.steps] for one in (self, other)
        )
        return mine == others


@dataclass(slots=True)
class _Read:
    text: str = ""
    finish: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def result(self) -> str:
        counts = [self.usage.get("prompt_tokens", 0), self.usage.get("completion_tokens", 0)]
        return json.dumps([self.text, self.finish, *counts], ensure_ascii=False)


class RequestFailed(Exception):
    """A request was answered with an error."""


class Player:
    """``key`` is the API key: results are shared among those who bring the same one."""

    def __init__(self, url: str, *, key: str = "") -> None:
        self._url = url
        self._key = key
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._http is not None
        await self._http.close()

    async def play(
        self,
        performance: Performance,
        *,
        workflow_id: str,
        workflow_type: str = "",
        key: str = "",
        pause_s: Callable[[], float] = lambda: 0.0,
        headers: Mapping[str, str] | None = None,
        at_most: int = sys.maxsize,
    ) -> Played:
        """``workflow_type``: in place of the performance's own. After ``at_most`` requests it ends. Raises
        RequestFailed, ToolFailed and aiohttp's errors."""
        type_id = workflow_type or performance.workflow_type
        sent = {"x-dynbranch-workflow-type": type_id, "x-dynbranch-workflow": workflow_id, **(headers or {})}
        if key or self._key:
            sent["authorization"] = f"Bearer {key or self._key}"
        steps: list[Step] = []
        pauses_s = 0.0
        began_unix_ms, begin = time.time() * 1e3, time.perf_counter()
        try:
            ask = next(performance.flow)
            while len(steps) < at_most:
                if ask.waits:
                    pause = pause_s()
                    pauses_s += pause
                    await asyncio.sleep(pause)
                step = await self._ask(ask, sent, begin)
                steps.append(step)
                ask = performance.flow.send(step.text)
        except StopIteration:
            pass
        whole_ms = (time.perf_counter() - begin) * 1e3
        return Played(
            performance.workflow_type,
            performance.record,
            workflow_id,
            tuple(steps),
            whole_ms,
            pauses_s * 1e3,
            began_unix_ms,
        )

    async def _ask(self, ask: Ask, headers: Mapping[str, str], begin: float) -> Step:
        assert self._http is not None
        path = "/v1/chat/completions" if ask.kind == "chat" else f"/dynbranch/v1/tools/{ask.target}"
        sent = {
            **headers,
            "content-type": "application/json",
            "x-dynbranch-agent": ask.agent,
            "x-dynbranch-stage": ask.stage,
        }
        if ask.kind == "chat" and ask.reads:
            sent["x-dynbranch-reads"] = ",".join(quote(record, safe="/") for record in ask.reads)
        at = time.perf_counter()
        async with self._http.post(self._url + path, data=ask.body, headers=sent) as response:
            answer = await response.read()
            if response.status != 200:
                failed = ToolFailed if ask.kind == "tool" else RequestFailed
                raise failed(f"{ask.stage}: {response.status} {answer[:300]!r}")
            outcome = response.headers.get(OUTCOME_HEADER, NOT_TOLD)
            branch = response.headers.get(BRANCH_HEADER, "")
            streamed = response.content_type == "text/event-stream"
        latency_ms = (time.perf_counter() - at) * 1e3
        if ask.kind == "tool":
            text = result = answer.decode()
        else:
            read = _streamed(answer) if streamed else _plain(answer)
            text, result = read.text, read.result()
        return Step(
            stage=ask.stage,
            kind=ask.kind,
            outcome=outcome,
            begin_ms=(at - begin) * 1e3,
            latency_ms=latency_ms,
            request=ask.body,
            result=result,
            text=text,
            branch=branch,
        )


def without_contents(played: Played) -> Played:
    """The same, small enough to be kept by the thousand."""
    return replace(played, steps=tuple(replace(s, request=b"", result="", text="") for s in played.steps))


def _plain(answer: bytes) -> _Read:
    value = json.loads(answer)
    choice = value["choices"][0]
    return _Read(choice["message"].get("content") or "", choice["finish_reason"], value.get("usage") or {})


def _streamed(answer: bytes) -> _Read:
    read = _Read()
    for line in answer.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line.removeprefix(b"data: "))
        read.usage = chunk.get("usage") or read.usage
        for choice in chunk.get("choices") or ():
            read.text += choice["delta"].get("content") or ""
            read.finish = choice.get("finish_reason") or read.finish
    return read
