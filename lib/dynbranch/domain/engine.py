"""Values of the engine agent: what it offers, what it runs, what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dynbranch.domain.ids import Digest, GenerationId
from dynbranch.domain.reuse import Fingerprint, Identity, Lease


class AgentKind(Enum):
    EMBEDDED = "embedded"
    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    TOOL = "tool"


class Freshness(Enum):
    """How a tool's source lets its results be kept. NONE: results are never stored."""

    IMMUTABLE = "immutable"
    VERSIONED = "versioned"
    WRITES_REPORTED = "writes_reported"
    NONE = ""


class WireProtocol(Enum):
    CHAT_COMPLETIONS = "chat_completions"
    TOOL = "tool"


class WorkClass(Enum):
    """On whose behalf a generation runs: a harness waits for CANONICAL, a FILL runs before its branch
    resolves, a DRAFT feeds a predictor. Engines with priorities serve them in this order."""

    CANONICAL = "canonical"
    FILL = "fill"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """One served model. ``equivalences`` holds spellings that the start-up probe showed to render alike."""

    id: str
    fingerprint: Fingerprint
    aliases: tuple[str, ...] = ()
    context_tokens: int = 0
    equivalences: frozenset[str] = frozenset()
    not_reusable_reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolDescription:
    name: str
    fingerprint: Fingerprint
    source: str = ""
    freshness: Freshness = Freshness.NONE
    description: str = ""


@dataclass(frozen=True, slots=True)
class AgentDescription:
    kind: AgentKind
    revision: int
    bypass_url: str
    ready: bool
    not_ready_reason: str = ""
    models: tuple[ModelDescription, ...] = ()
    tools: tuple[ToolDescription, ...] = ()
    slots: int = 0


@dataclass(frozen=True, slots=True)
class GenerationOrder:
    """One generation to run. ``body`` is JSON as the engine shall receive it. ``cache_scope`` names who may
    share an engine's cached prefixes with it, by an opaque digest; empty: everybody. ``prompt_hint`` is what
    gateways tell one another of how the prompt begins; empty: nothing. ``quiet``: its items are wanted
    together with its end. ``reserve_tokens`` is how much KV cache a fill or draft may come to hold."""

    generation_id: GenerationId
    protocol: WireProtocol
    target: str
    body: bytes
    fingerprint_digest: Digest
    identity: Identity
    lease: Lease | None = None
    detach_grace_ms: int = 0
    forward_headers: tuple[tuple[str, str], ...] = ()
    work: WorkClass = WorkClass.CANONICAL
    cache_scope: str = ""
    prompt_hint: bytes = b""
    quiet: bool = False
    reserve_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AttachOrder:
    """Follow a generation from an item of its log. ``adopts``: a demand takes the fill over, which is
    canonical work from now on. ``quiet``: all items are wanted together with the end."""

    generation_id: GenerationId
    from_item: int = 0
    wait_ms: int = 0
    adopts: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class AbortOrder:
    """``only_speculative``: leave canonical work alone, and with it a fill that a demand has taken over."""

    generation_id: GenerationId
    reason: str
    only_speculative: bool = False


@dataclass(frozen=True, slots=True)
class AbortResult:
    """Not ``aborted``: it was not running. ``confirmed_ms``: until the engine's own count had fallen; None
    where it has none, where it had not begun, and where it did not fall in time."""

    aborted: bool
    confirmed_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The generation ended well. ``commit`` says "committed", "not_asked" or why it was refused."""

    commit: str
    execution_ms: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine's own error. ``may_retry``: nothing was produced and another engine may be asked.
    ``retry_after`` is its header of that name, empty where it gave none."""

    http_status: int
    body: bytes
    may_retry: bool
    content_type: str = "application/json"
    execution_ms: float = 0.0
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Aborted:
    reason: str
    execution_ms: float = 0.0


GenerationEnd = Completed | Failed | Aborted


@dataclass(frozen=True, slots=True)
class GenerationEvents:
    """New items of a generation's log, and its end when it has come.

    ``traceparent`` names the generation's span, in the first message to one who joined it.
    """

    from_item: int
    items: tuple[bytes, ...]
    end: GenerationEnd | None = None
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What an agent reports of its engine. ``running`` and ``waiting`` are its own generations; ``engine_…``
    those of everyone who uses the engine, by its report and what the agent knows to be there now; None where
    it has no count. ``fills``: slots with what nobody waits for yet, ``drafts`` of them with drafts;
    ``fill_slots`` and ``fill_kv_tokens`` (None: none) are the agent's limits for both together."""

    revision: int
    ready: bool
    slots: int
    running: int
    waiting: int
    engine_running: int | None = None
    engine_waiting: int | None = None
    kv_used_share: float | None = None
    fills: int = 0
    prompt_hints: tuple[bytes, ...] = ()
    drafts: int = 0
    speculative_tokens: int = 0
    fill_slots: int = 0
    fill_kv_tokens: int | None = None
