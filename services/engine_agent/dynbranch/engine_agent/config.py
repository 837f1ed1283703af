"""The agent's settings. Each is read from ``DYNBRANCH_ENGINE_AGENT_<NAME>`` or the configuration file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from dynbranch.domain.engine import AgentKind
from dynbranch.domain.reuse import Level
from dynbranch.runtime.scheduling import usable_cores
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings


def _engine_threads() -> int:
    """One CPU stays free for everything else: a thread that waits for a preempted one does no work. On two
    busy CPUs one thread decoded 1.4 to 6 times faster than two."""
    return max(1, usable_cores() - 1)


class EngineAgentSettings(BaseSettings):
    listen: str = Field(default="127.0.0.1:7620", description="host:port for gRPC; port 0 takes a free one.")
    advertise: str = Field(
        default="", description="host:port by which gateways reach this agent; empty: listen."
    )
    csl: str = Field(default="", description="host:port of the store. Empty: results are not stored.")
    kind: AgentKind = Field(default=AgentKind.EMBEDDED, description="embedded, vllm, sglang, openai or tool.")

    model_path: Path | None = Field(
        default=None, description="GGUF file of the embedded engine. Empty: the packaged one."
    )
    model_id: str = Field(default="", description="Name that requests use. Empty: from the file's name.")
    slots: int | None = Field(
        default=None, ge=1, le=4096, description="Generations at once. Empty: the engine's own."
    )
    threads: int = Field(
        default_factory=_engine_threads,
        ge=1,
        description="Threads of the embedded engine. Empty: one CPU fewer than there are, at least one.",
    )
    context_tokens: int = Field(
        default=4096, ge=64, description="Prompt and output of one generation on the embedded engine."
    )

    engine_url: str = Field(
        default="",
        description="Base URL of a running server, for openai, sglang and vllm. Empty: vLLM is started.",
    )
    engine_api_key: SecretStr = Field(
        default=SecretStr(""), description="Sent to that server where a request brings no key of its own."
    )
    vllm_model: str = Field(
        default="", description="Folder or hub name of the model that vLLM is started for."
    )
    vllm_command: str = Field(
        default="",
        description="Command line that starts vLLM. Empty: vllm serve, or its module, as installed.",
    )
    vllm_arguments: str = Field(
        default="", description="Arguments of that vLLM, as in a shell: --max-model-len 8192 --port 8000"
    )
    engine_start_s: float = Field(default=900.0, gt=0, description="How long a start of vLLM may take.")
    generation_config: str = Field(
        default="auto",
        description="Sampling defaults of vLLM or SGLang: auto (the model's), vllm, openai (neutral), "
        "or a folder.",
    )
    tools_file: Path | None = Field(default=None, description="tools.yaml, for kind tool.")

    fingerprint_facts: list[str] = Field(
        default_factory=list,
        description="name=value facts that can not be probed: weights=..., chat_template=...",
    )
    level: Level = Field(default=Level.GREEDY, description="What greedy decoding here promises.")

    waiting: int = Field(default=64, ge=0, description="Generations that may wait for a slot.")
    fill_slots: int | None = Field(
        default=None,
        ge=0,
        description="Slots for fills and drafts together. Empty: half of them, at least one.",
    )
    fill_kv_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Tokens of KV cache that fills and drafts may reserve together. Empty: no limit.",
    )
    fills_give_way: bool = Field(
        default=True, description="Abort the newest fill when canonical work would wait for its slot."
    )
    engine_idle_s: float = Field(
        default=300.0, gt=0, description="The longest silence of the engine that is no failure."
    )
    commit_budget_ms: float = Field(
        default=100.0, ge=0, description="How long the end of a response may wait for its commit."
    )
    take_turns: bool = Field(
        default=True, description="A message does not interrupt who runs on the agent's core (SCHED_BATCH)."
    )
    retention_s: float = Field(default=5.0, ge=0, description="How long a finished log can be followed.")
    retention_bytes: int = Field(default=64 * 2**20, ge=0, description="All finished logs together.")
    log_bytes: int = Field(default=32 * 2**20, gt=0, description="The largest log of one generation.")
    drain_s: float = Field(default=20.0, ge=0, description="How long a stop waits for running generations.")

    @field_validator("fingerprint_facts")
    @classmethod
    def _named(cls, facts: list[str]) -> list[str]:
        for fact in facts:
            name, equals, _ = fact.partition("=")
            if not equals or not name.strip():
                raise ValueError(f"{fact!r} is not name=value")
        return facts

    @field_validator("engine_url")
    @classmethod
    def _http(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname or "//" in parts.path):
            raise ValueError(f"{url!r} is not the base URL of a server, like http://127.0.0.1:8000")
        return url

    @field_validator("level")
    @classmethod
    def _declarable(cls, level: Level) -> Level:
        if level not in (Level.GREEDY, Level.BATCH_INVARIANT):
            raise ValueError("an engine is greedy or batch_invariant")
        return level

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> EngineAgentSettings:
        if self.kind in (AgentKind.OPENAI, AgentKind.SGLANG) and not self.engine_url:
            raise ValueError(f"kind {self.kind.value} needs engine_url")
        if self.kind is AgentKind.VLLM and not (self.engine_url or self.vllm_model):
            raise ValueError("kind vllm needs engine_url or vllm_model")
        if self.kind is AgentKind.TOOL and self.tools_file is None:
            raise ValueError("kind tool needs tools_file")
        return self

    @property
    def facts(self) -> dict[str, str]:
        pairs = (fact.partition("=") for fact in self.fingerprint_facts)
        return {name.strip(): value.strip() for name, _, value in pairs}
