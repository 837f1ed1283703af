"""Every setting of the gateway. ``DYNBRANCH_GATEWAY_<NAME>`` sets one; ``DYNBRANCH_ENABLED`` has no
prefix."""

from __future__ import annotations

from typing import Literal

from dynbranch.gateway.core.reuse_policy import AdoptPolicy, ReusePolicy
from dynbranch.gateway.core.routing import RoutingPolicy
from dynbranch.gateway.recording import Bodies
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class GatewaySettings(BaseSettings):
    model_config = SettingsConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    listen: str = Field(
        "127.0.0.1:8080", pattern=r".+:\d+$", description="Address to listen on; port 0: any."
    )
    enabled: bool = Field(
        True, validation_alias="DYNBRANCH_ENABLED", description="False: everything goes raw to the engine."
    )
    csl: str = Field("", description="Address of the store; empty: nothing is reused.")
    controller: str = Field("", description="Address of the controller; empty: nothing is reported.")
    agents: tuple[str, ...] = Field((), description="Addresses of the engine agents, host:port.")
    engine_url: str = Field("", description="Where raw HTTP goes when no agent tells.")
    tenants: str = Field(
        "", description="TOML file that maps API keys to tenants; empty: one tenant, no keys."
    )
    sharing: Literal["tenant", "all"] = Field("tenant", description="Who shares results: a tenant's, or all.")
    reuse: ReusePolicy = Field(ReusePolicy.GREEDY, description="batch_invariant, greedy or off.")

    greedy_harnesses: tuple[
        Literal["claude-code", "codex", "deepseek-harness", "opencode", "qwen-code"], ...
    ] = Field((), description="Harnesses whose answers are decoded greedily, whatever they ask for.")

    keep_responses: bool = Field(
        True, description="Answers of Responses are kept for later requests, unless these say no."
    )

    csl_budget_ms: float = Field(250, gt=0, description="Longest wait for the store's answer to a demand.")
    csl_slow_ms: float = Field(200, gt=0, description="A slower answer counts towards opening the breaker.")
    csl_bad_calls: int = Field(5, ge=1, description="Bad calls in a row that open the breaker.")
    csl_open_ms: float = Field(1000, gt=0, description="How long the breaker stays open before a probe.")
    write_timeout_s: float = Field(30, gt=0, description="Deadline of a write.")
    idle_s: float = Field(300, gt=0, description="Longest silence of a generation.")
    detach_grace_ms: int = Field(0, ge=0, description="How long a generation outlives its last client.")
    adopt: AdoptPolicy = Field(
        AdoptPolicy.STREAM,
        description="A running fill that is demanded: stream follows it, wait takes the whole.",
    )
    adopt_stall_ms: float = Field(
        2000,
        gt=0,
        description="An adopted fill that gives nothing for so long is left; the request executes.",
    )
    record: str = Field(
        "", description="File that requests and what came of them are recorded in; empty: nothing is."
    )
    record_types: tuple[str, ...] = Field(
        (), description="The workflow types that are recorded; *: all, and requests of none."
    )
    record_bodies: Bodies = Field(
        Bodies.KEPT, description="kept: whole requests and answers. hashed: digests of them."
    )
    record_file_bytes: int = Field(
        256 * 2**20, ge=2**16, description="A recorded file that would grow larger is put aside."
    )
    record_files: int = Field(4, ge=1, description="So many recorded files are kept, the newest included.")
    agent_silence_s: float = Field(
        5, ge=1, description="An agent that reports nothing for so long is lost: its requests go elsewhere."
    )
    agent_mute_s: float = Field(
        1, gt=0, description="An engine that owes answers and says nothing for so long gets no more for now."
    )
    occupancy_interval_ms: int = Field(250, ge=10, description="How often agents report their occupancy.")
    routing: RoutingPolicy = Field(
        RoutingPolicy.PREFIX, description="prefix: where a prompt's beginning is held; least_in_flight."
    )
    engine_cache_tokens: int = Field(
        500_000, ge=1, description="Tokens of prompts that one engine's prefix cache has room for."
    )

    recent_bytes: int = Field(
        16 * 2**20,
        ge=0,
        description="Bodies of recent requests that 'explain' compares a new one with; 0: none are kept.",
    )
    max_in_flight: int = Field(2048, ge=1, description="Exchanges in flight; more get 503.")
    max_body_bytes: int = Field(64 * 2**20, ge=1, description="Larger bodies get 413.")
    max_buffered_bytes: int = Field(
        512 * 2**20, ge=1, description="Bodies held at once, beyond 64 KiB each; more get 503."
    )
    body_timeout_s: float = Field(60, gt=0, description="A body must be there within this time.")
    max_connections: int = Field(
        4096, ge=1, description="Open connections; then one that waits for a request gives way."
    )
    head_timeout_s: float = Field(20, gt=0, description="A request's head must be there within this time.")
    connection_idle_s: float = Field(75, gt=0, description="A connection without a request is closed then.")
    linger_s: float = Field(
        5, gt=0, description="How long an unwanted body is read, so that its error is seen."
    )
    keep_alive_s: float = Field(15, gt=0, description="Silence after which a stream gets a keep-alive.")
    stall_s: float = Field(120, gt=0, description="A client that reads nothing for so long counts as gone.")
    take_turns: bool = Field(
        True, description="A message does not interrupt who runs on the gateway's core (SCHED_BATCH)."
    )
    ready_grace_s: float = Field(30, ge=0, description="How long after the start all parts are waited for.")
    stop_grace_s: float = Field(20, gt=0, description="How long requests in flight may take at a stop.")
