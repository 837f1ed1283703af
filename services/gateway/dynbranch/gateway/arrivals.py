"""From an HTTP request to a stage: parsed, normalised, given a pool and a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from dynbranch.domain.engine import Freshness, ModelDescription, ToolDescription, WireProtocol
from dynbranch.domain.ids import Digest, Name
from dynbranch.domain.reuse import PURE, Identity, Level, ReadScope
from dynbranch.domain.template import StageKind
from dynbranch.gateway.core.harness_profile import profile_of
from dynbranch.gateway.core.life import Plan
from dynbranch.gateway.core.pool import NoPool, Offer, Pool, choose_pool
from dynbranch.gateway.core.prompt_prefix import NO_PREFIX, PromptPrefix, prompt_prefix
from dynbranch.gateway.core.request_headers import OptOuts, parse_identity, parse_opt_outs, parse_read_scope
from dynbranch.gateway.core.reuse_policy import ReusePolicy, storable, why_not_reused
from dynbranch.gateway.desk import Desk, is_light
from dynbranch.gateway.directory import Directory
from dynbranch.gateway.protocols.errors import ApiError, unknown_model
from dynbranch.gateway.protocols.harness import Who, decoded_greedily, harness_in, who_asks
from dynbranch.gateway.stage import Stage
from dynbranch.gateway.telling import Recognised, recognise
from dynbranch.gateway.templates import Templates
from dynbranch.naming.document import Document, parse_body
from dynbranch.naming.fingerprint import joined_digest
from dynbranch.naming.name import reuse_name
from dynbranch.naming.normalise import NormalisedRequest, model_of, normalise_chat, normalise_tool

_FORWARDED = ("authorization",)

MAX_ORDER_BYTES = 60 * 2**20
"""A larger body does not fit into one message to an agent; it goes raw to the engine."""


@dataclass(frozen=True, slots=True)
class ArrivalPolicy:
    """``shares_all``: one sharing group for all tenants. ``hides_keys``: the key is the gateway's own.
    ``greedy_harnesses``: whose requests are decoded greedily, whatever they ask for."""

    reuse: ReusePolicy
    shares_all: bool
    hides_keys: bool
    engine_url: str
    greedy_harnesses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One normalised request. Its stage has no name where ``why_not_reused`` says why it is not reused.
    ``recognised`` is None where its workflow type has no template, ``who`` where no harness is known."""

    request: NormalisedRequest
    pool: Pool
    stage: Stage
    why_not_reused: str
    recognised: Recognised | None = None
    who: Who | None = None

    @property
    def full_name(self) -> Name:
        """The name that its result would have. Made anew at each call, as the body is long."""
        return reuse_name(self.stage.sharing_group, self.pool.fingerprint, self.request.canonical)

    @property
    def kind(self) -> StageKind:
        return StageKind.TOOL if self.stage.protocol is WireProtocol.TOOL else StageKind.CHAT


class OnlyRaw(Exception):
    """The request can only be forwarded raw: no agent has said yet that it serves this, or it is too
    large."""


class Arrivals:
    """``templates`` None: there is no controller that could tell any."""

    def __init__(
        self, directory: Directory, policy: ArrivalPolicy, desk: Desk, templates: Templates | None = None
    ) -> None:
        self._directory = directory
        self._policy = policy
        self._desk = desk
        self._templates = templates

    async def chat(self, document: Document, headers: Mapping[str, str], tenant: str) -> Arrival:
        """A request in the form of Chat Completions, whatever it came as. Raises InvalidRequest, ApiError
        (404) for an unknown model, OnlyRaw."""
        model_name, who, light = model_of(document), None, is_light(document.source)
        if harness_in(headers) is not None:
            who = await self._desk.read_as(light, who_asks, headers, document.value)
        if who is not None:
            headers = who.told_in(headers)
            if self.decodes_greedily(who):
                document = await self._desk.read_as(light, decoded_greedily, document)
        body = document.source
        identity, opt_outs = parse_identity(headers, tenant), parse_opt_outs(headers)
        scope = parse_read_scope(headers)
        pool = self._pool(self._directory.offers_of_model(model_name), "model", model_name)
        model = pool.executor
        assert isinstance(model, ModelDescription)
        request = await self._desk.read_as(
            light,
            partial(normalise_chat, served_model=model.id, fingerprint=model.fingerprint),
            document,
            model.equivalences,
        )
        why_not = why_not_reused(
            self._policy.reuse,
            model.fingerprint.level,
            request="" if request.reuse.reusable else request.reuse.explanation,
            model=model.not_reusable_reason,
        )
        sampled = request.reuse.reason == "sampled"
        recognised = await self._recognised(identity, StageKind.CHAT, "", body)
        draws = sampled or (request.reuse.reusable and model.fingerprint.level is Level.SAMPLED)
        once = recognised is not None and recognised.may_be_once and draws and not model.not_reusable_reason
        arrival = await self._arrival(
            request,
            pool,
            identity,
            opt_outs,
            light=light,
            recognised=recognised,
            once=once and opt_outs.may_hit and self._policy.reuse is not ReusePolicy.OFF,
            scope=scope,
            protocol=WireProtocol.CHAT_COMPLETIONS,
            level=Level.SAMPLED if sampled else model.fingerprint.level,
            why_not=why_not,
            forward_headers=self._forwarded(headers),
            repeatable=True,
        )
        if who is None:
            return arrival
        grace_ms = profile_of(who.harness).detach_grace_ms
        return replace(arrival, who=who, stage=replace(arrival.stage, detach_grace_ms=grace_ms))

    async def tool(self, name: str, body: bytes, headers: Mapping[str, str], tenant: str) -> Arrival:
        """Raises InvalidRequest, ApiError (404) for an unknown tool, OnlyRaw."""
        document = await self._desk.read(body, parse_body, body)
        identity, opt_outs = parse_identity(headers, tenant), parse_opt_outs(headers)
        pool = self._pool(self._directory.offers_of_tool(name), "tool", name)
        tool = pool.executor
        assert isinstance(tool, ToolDescription)
        kept = storable(tool.freshness, tool.source)
        off = self._policy.reuse is ReusePolicy.OFF
        return await self._arrival(
            await self._desk.read(body, normalise_tool, name, document),
            pool,
            identity,
            opt_outs,
            light=is_light(body),
            recognised=await self._recognised(identity, StageKind.TOOL, tool.name, body),
            once=False,
            scope=PURE if tool.freshness is Freshness.IMMUTABLE else ReadScope(sources=(tool.source,)),
            protocol=WireProtocol.TOOL,
            level=tool.fingerprint.level,
            why_not="Reuse is switched off." if off else "" if kept else "The tool names no source.",
            forward_headers=self._forwarded(headers),
            repeatable=kept,
        )

    async def _recognised(
        self, identity: Identity, kind: StageKind, target: str, body: bytes
    ) -> Recognised | None:
        """Never in the way: a template that fails here is none."""
        template = self._templates.of(identity.workflow_type_id) if self._templates is not None else None
        if template is None:
            return None
        try:
            return await self._desk.read(body, recognise, template, kind, target, body, identity.stage)
        except Exception:  # noqa: BLE001  # whatever a template does, the request goes on
            template.failed()
            return None

    async def _arrival(
        self,
        request: NormalisedRequest,
        pool: Pool,
        identity: Identity,
        opt_outs: OptOuts,
        *,
        light: bool,
        recognised: Recognised | None,
        once: bool,
        scope: ReadScope,
        protocol: WireProtocol,
        level: Level,
        why_not: str,
        forward_headers: tuple[tuple[str, str], ...],
        repeatable: bool,
    ) -> Arrival:
        group = "*" if self._policy.shares_all else sharing_group(identity.tenant, forward_headers)
        demands = (once or not why_not) and opt_outs.may_store
        engine_body, name, digests, prefix = await self._desk.read_as(
            light, _order_of, request, group, pool, demands
        )
        if len(engine_body) > MAX_ORDER_BYTES:
            raise OnlyRaw(f"the body is larger than the {MAX_ORDER_BYTES} bytes that an agent takes")
        may_stand_aside = bool(self.bypass_urls(pool, protocol))
        plan = Plan(pool, demands, repeatable, may_stand_aside, once=once and demands)
        stage = Stage(
            plan=plan,
            protocol=protocol,
            target=pool.executor.id if isinstance(pool.executor, ModelDescription) else pool.executor.name,
            body=engine_body,
            identity=identity,
            level=level,
            name=name,
            scope=scope,
            input_digests=digests,
            may_hit=opt_outs.may_hit,
            forward_headers=forward_headers,
            sharing_group=group,
            cache_scope="" if self._policy.shares_all else _cache_scope(group),
            prefix=prefix,
        )
        return Arrival(request, pool, stage, why_not, recognised)

    def _pool(self, offers: list[Offer], kind: str, wanted: str) -> Pool:
        match choose_pool(offers, undescribed=self._directory.undescribed):
            case Pool() as pool:
                return pool
            case NoPool.UNKNOWN if self._directory.agents and kind == "model":
                raise unknown_model(wanted, self._directory.served_models())
            case NoPool.UNKNOWN if self._directory.agents:
                raise ApiError(404, f"The {kind} {wanted[:200]!r} does not exist.", code=f"{kind}_not_found")
            case NoPool.UNKNOWN | NoPool.UNDESCRIBED:
                raise OnlyRaw(f"no agent that serves the {kind} {wanted[:200]!r} is known yet")

    def bypass_urls(self, pool: Pool | None, protocol: WireProtocol) -> tuple[str, ...]:
        """Where raw HTTP may go, best first."""
        configured = (self._policy.engine_url,) if self._policy.engine_url else ()
        match protocol:
            case WireProtocol.TOOL:
                return pool.bypass_urls if pool else ()
            case WireProtocol.CHAT_COMPLETIONS if pool and pool.bypass_urls:
                return pool.bypass_urls
            case WireProtocol.CHAT_COMPLETIONS:
                return configured or self._directory.engine_urls()

    def model_urls(self, model: str) -> tuple[str, ...]:
        """Where raw HTTP for a model goes when nothing else is known of the request."""
        match choose_pool(self._directory.offers_of_model(model), undescribed=0) if model else None:
            case Pool() as pool:
                return self.bypass_urls(pool, WireProtocol.CHAT_COMPLETIONS)
            case _:
                return self.bypass_urls(None, WireProtocol.CHAT_COMPLETIONS)

    def urls_of_served(self, model: str) -> tuple[str, ...]:
        """Where the engines of a model are asked. Raises ApiError (404) for an unknown model, OnlyRaw."""
        pool = self._pool(self._directory.offers_of_model(model), "model", model)
        return self.bypass_urls(pool, WireProtocol.CHAT_COMPLETIONS)

    def tool_urls(self, name: str) -> tuple[str, ...]:
        match choose_pool(self._directory.offers_of_tool(name), undescribed=0):
            case Pool() as pool:
                return pool.bypass_urls
            case _:
                return ()

    def decodes_greedily(self, who: Who | None) -> bool:
        """Whether the operator has decided so for this harness."""
        return who is not None and who.harness in self._policy.greedy_harnesses

    def sharing(self, arrival: Arrival) -> str:
        """Who shares the result, for people. A key shows by its SHA-256 alone, and that not whole."""
        if self._policy.shares_all:
            return "everybody"
        sent = [
            f"the {name.title()} header sent (sha256 {_short_digest(value)}…)"
            for name, value in arrival.stage.forward_headers
        ]
        with_what = f"with {' and '.join(sent)}" if sent else "nothing forwarded"
        return f"tenant {arrival.stage.identity.tenant}, {with_what}"

    def _forwarded(self, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        if self._policy.hides_keys:
            return ()
        return tuple((name, headers[name]) for name in _FORWARDED if name in headers)


def sharing_group(tenant: str, forwarded: tuple[tuple[str, str], ...]) -> str:
    """Who shares a result. What is forwarded may decide what an engine or a backend answers."""
    group = f"tenant/{tenant}"
    if not forwarded:
        return group
    parts = (text.encode() for header in forwarded for text in header)
    return f"forwarded/{joined_digest(b'dynbranch/forwarded/1', parts).hex()}/{group}"


@lru_cache(maxsize=1024)
def _cache_scope(group: str) -> str:
    """The sharing group as an engine may see it: it keeps apart and names nobody."""
    return joined_digest(b"dynbranch/cache-scope/1", (group.encode(),)).hex()[:32]


def _short_digest(value: str) -> str:
    return hashlib.sha256(value.encode("latin-1")).hexdigest()[:8]


def model_in(body: bytes) -> str:
    """The model that a body names, if it can be told; the engine judges the body itself."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    model = document.get("model") if isinstance(document, dict) else None
    return model if isinstance(model, str) else ""


def _order_of(
    request: NormalisedRequest, group: str, pool: Pool, is_named: bool
) -> tuple[bytes, Name | None, tuple[Digest, ...], PromptPrefix]:
    """What the engine is sent; the name of its result and what it may have been made of, if it is to have a
    name; and where its prompt may have been read before, if there is a choice."""
    several = len(pool.members) > 1 and request.table is not None
    return (
        request.engine_body,
        reuse_name(group, pool.fingerprint, request.canonical) if is_named else None,
        request.input_digests if is_named else (),
        prompt_prefix(request.document.value, group) if several else NO_PREFIX,
    )
