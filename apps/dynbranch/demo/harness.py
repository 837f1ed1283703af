"""A small agent harness: the ordinary ``openai`` client for the model and plain HTTP for the tools.

It knows nothing of DynBranch but the base URL. For the demonstration it adds the identity headers of its
workflow and notes what each response's headers say.
"""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

OUTCOME_HEADER = "x-dynbranch-outcome"
NOT_TOLD = "bypass"
"""What a response without an outcome header is counted as: nothing of DynBranch touched it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model or tool call as the harness saw it.

    ``key`` is the same in every arm for the same step of the same record. ``result`` holds everything that
    equality is about, as canonical bytes; ``text`` is what the harness goes on with; ``request`` is a digest
    of what was asked.
    """

    key: str
    stage: str
    outcome: str
    latency_ms: float
    result: bytes
    text: str
    request: str
    reads: tuple[str, ...] = ()
    level: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ToolFailed(Exception):
    """A tool answered with an error."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """One run of one record: its headers, and the calls it has made."""

    record: str
    headers: Mapping[str, str]
    calls: list[Call] = field(default_factory=list)


class Harness:
    """Sends the calls of workflows to one base URL."""

    def __init__(self, url: str, model: str, *, timeout_s: float = 120.0) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._timeout_s = timeout_s
        # No retries: a demonstration that hides errors shows nothing.
        self._client = OpenAI(
            base_url=f"{self._url}/v1", api_key="not-needed", timeout=timeout_s, max_retries=0
        )

    def close(self) -> None:
        self._client.close()

    def workflow(self, type_id: str, record: str, run: str, traceparent: str) -> Workflow:
        headers = {
            "x-dynbranch-workflow-type": type_id,
            "x-dynbranch-workflow": f"{run}-{record}",
            "x-dynbranch-agent": "main",
            "traceparent": traceparent,
        }
        return Workflow(f"{type_id}/{record}", headers)

    def chat(
        self,
        workflow: Workflow,
        stage: str,
        messages: list[dict[str, Any]],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        reads: tuple[str, ...] = (),
        stream: bool = False,
    ) -> Call:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": max_tokens,
            "extra_headers": {**workflow.headers, "x-dynbranch-stage": stage},
        }
        if schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": stage, "schema": schema, "strict": True},
            }
        begin = time.perf_counter()
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = self._client.chat.completions.with_raw_response.create(**body)
        seen = _gather(raw.parse()) if stream else _seen(raw.parse())
        latency_ms = (time.perf_counter() - begin) * 1e3
        return self._note(
            workflow,
            Call(
                key=f"{workflow.record}/{stage}",
                stage=stage,
                outcome=raw.headers.get(OUTCOME_HEADER, NOT_TOLD),
                latency_ms=latency_ms,
                result=_canonical(seen),
                text=seen["choices"][0]["text"],
                request=_digest(messages, schema, max_tokens),
                reads=reads,
                level=raw.headers.get("x-dynbranch-level", ""),
                prompt_tokens=seen["prompt_tokens"],
                completion_tokens=seen["completion_tokens"],
            ),
        )

    def tool(
        self,
        workflow: Workflow,
        name: str,
        arguments: Mapping[str, Any],
        *,
        step: str,
        reads: tuple[str, ...],
    ) -> Call:
        """Raises ToolFailed."""
        request = urllib.request.Request(
            f"{self._url}/dynbranch/v1/tools/{name}",
            data=json.dumps(arguments).encode(),
            headers={**workflow.headers, "content-type": "application/json"},
        )
        begin = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                body, headers = response.read(), response.headers
        except urllib.error.HTTPError as error:
            raise ToolFailed(f"tool {name}: {error.code} {error.read()[:300]!r}") from error
        latency_ms = (time.perf_counter() - begin) * 1e3
        return self._note(
            workflow,
            Call(
                key=f"{workflow.record}/{step}",
                stage=name,
                outcome=headers.get(OUTCOME_HEADER, NOT_TOLD),
                latency_ms=latency_ms,
                result=body,
                text=body.decode(),
                request=_digest(name, arguments),
                reads=reads,
                level=headers.get("x-dynbranch-level", ""),
            ),
        )

    def _note(self, workflow: Workflow, call: Call) -> Call:
        workflow.calls.append(call)
        return call


def models(url: str) -> list[str]:
    """The ids of the models that are served."""
    with OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key="not-needed", max_retries=0) as client:
        return [model.id for model in client.models.list()]


def _digest(*asked: object) -> str:
    return hashlib.sha256(json.dumps(asked, ensure_ascii=False).encode()).hexdigest()


def _canonical(seen: Mapping[str, Any]) -> bytes:
    return json.dumps(seen, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _choice(
    index: int, text: str, reasoning: str, refusal: str, tools: list[list[str]], finish: str
) -> dict[str, Any]:
    """Text, reasoning, tool calls and finish; without the tool calls' ids, which are made anew each time."""
    return {
        "index": index,
        "text": text,
        "reasoning": reasoning,
        "refusal": refusal,
        "tool_calls": tools,
        "finish": finish,
    }


def _seen(completion: ChatCompletion) -> dict[str, Any]:
    choices = []
    for choice in completion.choices:
        message = choice.message
        calls = [_tool_call(call.model_dump()) for call in message.tool_calls or ()]
        reasoning = (message.model_extra or {}).get("reasoning_content") or ""
        choices.append(
            _choice(
                choice.index,
                message.content or "",
                reasoning,
                message.refusal or "",
                calls,
                choice.finish_reason,
            )
        )
    usage = completion.usage
    return {
        "choices": choices,
        "prompt_tokens": usage.prompt_tokens if usage else 0,
        "completion_tokens": usage.completion_tokens if usage else 0,
    }


def _tool_call(call: Mapping[str, Any]) -> list[str]:
    function = call.get("function") or {}
    return [str(function.get("name") or ""), str(function.get("arguments") or "")]


@dataclass(slots=True)
class _Gathered:
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    finish: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)


def _gather(chunks: Iterable[ChatCompletionChunk]) -> dict[str, Any]:
    """A stream put together, in the same shape as a plain completion."""
    choices: dict[int, _Gathered] = {}
    prompt_tokens = completion_tokens = 0
    for chunk in chunks:
        if chunk.usage is not None:
            prompt_tokens, completion_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices:
            gathered = choices.setdefault(choice.index, _Gathered())
            delta = choice.delta
            gathered.text += delta.content or ""
            gathered.reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
            gathered.refusal += delta.refusal or ""
            gathered.finish = choice.finish_reason or gathered.finish
            for call in delta.tool_calls or ():
                so_far = gathered.calls.setdefault(call.index, ["", ""])
                for place, more in enumerate(_tool_call(call.model_dump())):
                    so_far[place] += more
    return {
        "choices": [
            _choice(i, c.text, c.reasoning, c.refusal, [c.calls[n] for n in sorted(c.calls)], c.finish)
            for i, c in sorted(choices.items())
        ],
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
    }
