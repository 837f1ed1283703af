"""The start-up probe: which engine answers, what determines its output, and which spellings render alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dynbranch.domain.engine import ModelDescription
from dynbranch.domain.ids import UnixMs
from dynbranch.domain.reuse import Fingerprint, Level
from dynbranch.engine_agent.engines.fingerprint import (
    CONVERSATIONS,
    PROBE_TOOLS,
    Conversation,
    clock_reason,
    default_facts,
    metric_labels,
    rendering_digest,
    text_digest,
)
from dynbranch.engine_agent.engines.http import EngineHttp
from dynbranch.engine_agent.engines.port import EngineUnavailable
from dynbranch.naming.equivalences import ProbePair, probe_pairs

VOUCHED_TEMPLATE = "chat_template"
"""The fact by which an operator vouches for a chat template that can not be examined."""


class Flavour(Enum):
    LLAMA_SERVER = "llama-server"
    VLLM = "vllm"
    SGLANG = "sglang"
    GENERIC = "generic"


TELLS_ITS_PROCESS = frozenset({Flavour.LLAMA_SERVER, Flavour.VLLM})
"""llama-server draws a marker at its start, vLLM's metrics say when its process began. Behind the others the
weights may change and nobody notices."""


@dataclass(frozen=True, slots=True)
class Server:
    """What the probe found out about an OpenAI-compatible server."""

    flavour: Flavour
    slots: int | None
    models: tuple[ModelDescription, ...]


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What is known of one model from elsewhere than the server's answers to the probe."""

    facts: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None


async def no_details(card: Mapping[str, Any]) -> ModelDetails:
    return ModelDetails()


@dataclass(frozen=True, slots=True)
class Given:
    """What is known without asking: the operator's facts, the level that is promised, the time."""

    facts: Mapping[str, str]
    level: Level
    now: UnixMs
    identify: Callable[[Flavour], Awaitable[str]]
    """Names the server, with its process where its flavour tells that. It stands in for unknown weights."""
    details: Callable[[Mapping[str, Any]], Awaitable[ModelDetails]] = no_details
    """More about one model, by its card in ``/v1/models``."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one flavour's own endpoints told."""

    facts: dict[str, str]
    template: str | None = None
    slots: int | None = None
    context_tokens: int = 0


async def examine(http: EngineHttp, given: Given) -> Server:
    """Raises EngineUnavailable when the server does not answer or serves no model."""
    listing = await http.get_json("/v1/models")
    cards = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(cards, list) or not cards:
        raise EngineUnavailable("the server lists no model at /v1/models")
    flavour, seen = await _flavour(http)
    instance = await given.identify(flavour)
    models = [
        await _model(http, flavour, seen, card, given, instance) for card in cards if isinstance(card, dict)
    ]
    return Server(flavour, seen.slots, tuple(models))


async def _flavour(http: EngineHttp) -> tuple[Flavour, _Seen]:
    props = await http.get_json("/props")
    if isinstance(props, dict) and "total_slots" in props:
        return Flavour.LLAMA_SERVER, _llama(props)
    metrics = await http.get("/metrics") or ""
    if "vllm:" in metrics:
        version = await http.get_json("/version")
        return Flavour.VLLM, _vllm(version, metrics)
    info = await http.get_json("/get_server_info") or await http.get_json("/server_info")
    if isinstance(info, dict):
        return Flavour.SGLANG, _sglang(info)
    return Flavour.GENERIC, _Seen({})


def _llama(props: Mapping[str, Any]) -> _Seen:
    settings = props.get("default_generation_settings") or {}
    template = str(props.get("chat_template") or "")
    facts = {
        "engine": "llama-server",
        "engine.build": str(props.get("build_info", "unknown")),
        "quantisation": str(props.get("model_ftype", "unknown")),
        "chat_template": text_digest(template),
        "slots": str(props["total_slots"]),
        "context_tokens": str(settings.get("n_ctx", 0)),
        "prefix_cache": "unknown",
        **default_facts(settings.get("params") or {}),
    }
    return _Seen(facts, template, int(props["total_slots"]), int(settings.get("n_ctx", 0)))


def _vllm(version: object, metrics: str) -> _Seen:
    cache = metric_labels(metrics, "vllm:cache_config_info")
    facts = {
        "engine": "vllm",
        "engine.version": str(version.get("version", "unknown")) if isinstance(version, dict) else "unknown",
        "prefix_cache": cache.get("enable_prefix_caching", "unknown"),
        "kv.dtype": cache.get("cache_dtype", "unknown"),
        "kv.block_size": cache.get("block_size", "unknown"),
    }
    return _Seen(facts)


_SGLANG_FACTS = (
    "version", "model_path", "tokenizer_path", "revision", "dtype", "quantization", "kv_cache_dtype",
    "tp_size", "attention_backend", "sampling_backend", "disable_radix_cache", "chat_template",
    "enable_deterministic_inference",
)  # fmt: skip


def _sglang(info: Mapping[str, Any]) -> _Seen:
    facts = {f"engine.{key}": str(info[key]) for key in _SGLANG_FACTS if key in info}
    slots = info.get("max_running_requests")
    return _Seen({"engine": "sglang", **facts}, slots=slots if isinstance(slots, int) else None)


async def _model(
    http: EngineHttp,
    flavour: Flavour,
    seen: _Seen,
    card: Mapping[str, Any],
    given: Given,
    instance: str,
) -> ModelDescription:
    model_id = str(card.get("id", ""))
    renderer = _Renderer(http, flavour, model_id)
    rendered = [await renderer.render(conversation) for conversation in CONVERSATIONS]
    texts = [text for text in rendered if text is not None]
    known = bool(texts) and len(texts) == len(rendered)
    details = await given.details(card)
    facts = {"model": str(card.get("root") or model_id), **seen.facts, **details.facts}
    if card.get("parent"):
        facts["adapter"] = model_id
    if known:
        with_tools = await renderer.render(CONVERSATIONS[0], tools=True)
        texts.append("no tools" if with_tools is None else with_tools)
        facts["rendering"] = rendering_digest(texts)
    facts.update(given.facts)
    unknown_weights = _unknown_weights(flavour, facts)
    if "weights" not in facts and "instance" not in facts:
        facts["instance"] = instance
    return ModelDescription(
        id=model_id,
        fingerprint=Fingerprint(tuple(sorted(facts.items())), given.level),
        aliases=tuple(a for a in card.get("aliases") or () if isinstance(a, str) and a != model_id),
        context_tokens=seen.context_tokens or int(card.get("max_model_len") or 0),
        equivalences=await _equivalences(renderer) if known else frozenset(),
        not_reusable_reason=_not_reusable(seen.template or details.template, texts, known, given)
        or unknown_weights,
    )


def _not_reusable(template: str | None, texts: list[str], known: bool, given: Given) -> str:
    if VOUCHED_TEMPLATE in given.facts:
        return ""
    if template is None and not known:
        return (
            "the chat template can not be examined; vouch for it with "
            "DYNBRANCH_ENGINE_AGENT_FINGERPRINT_FACTS=chat_template=..."
        )
    return clock_reason(template or "", texts, given.now)


def _unknown_weights(flavour: Flavour, facts: Mapping[str, str]) -> str:
    """``facts`` hold no ``instance`` that merely names the server: it would say nothing of its weights."""
    if flavour in TELLS_ITS_PROCESS or not {"weights", "instance"}.isdisjoint(facts):
        return ""
    return (
        "the weights can not be told, nor when they change; vouch for them with "
        "DYNBRANCH_ENGINE_AGENT_FINGERPRINT_FACTS=weights=..."
    )


async def _equivalences(renderer: _Renderer) -> frozenset[str]:
    """What naming may treat as one spelling: each equivalence whose every pair renders the same."""
    held: dict[str, bool] = {}
    shared: tuple[ProbePair, str | None] | None = None
    for pair in probe_pairs():
        if shared is None or not pair.shares_first(shared[0]):
            shared = pair, await renderer.render(pair.first, tools=pair.tools, chooses=pair.chooses)
        first = shared[1]
        second = await renderer.render(pair.second, tools=pair.tools, chooses=pair.chooses)
        same = first is not None and first == second
        held[pair.equivalence] = held.get(pair.equivalence, True) and same
    return frozenset(equivalence for equivalence, holds in held.items() if holds)


@dataclass(frozen=True, slots=True)
class _Renderer:
    """Asks the engine itself for a rendered prompt, without running it."""

    http: EngineHttp
    flavour: Flavour
    model_id: str

    async def render(
        self, conversation: Conversation, *, tools: bool = False, chooses: bool = False
    ) -> str | None:
        """The prompt; None when this engine does not show it, or refuses the conversation."""
        body: dict[str, Any] = {"model": self.model_id, "messages": list(conversation)}
        if tools:
            body["tools"] = list(PROBE_TOOLS)
        if chooses:
            body["tool_choice"] = "auto"
        if self.flavour is Flavour.LLAMA_SERVER:
            answer = await self.http.post_json("/apply-template", body)
            prompt = answer.get("prompt") if isinstance(answer, dict) else None
            return prompt if isinstance(prompt, str) else None
        if self.flavour is Flavour.VLLM:
            return await self._detokenized(body)
        return None

    async def _detokenized(self, body: dict[str, Any]) -> str | None:
        answer = await self.http.post_json("/tokenize", {**body, "add_generation_prompt": True})
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list):
            return None
        text = await self.http.post_json("/detokenize", {"model": self.model_id, "tokens": tokens})
        prompt = text.get("prompt") if isinstance(text, dict) else None
        return f"{tokens}\n{prompt}" if isinstance(prompt, str) else None
