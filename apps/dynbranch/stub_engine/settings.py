"""What a stub engine is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dynbranch.enginemodel.parameters import FixedParameters, Parameters
from dynbranch.stub_engine.faults import Fault
from dynbranch.stub_engine.script import Rule


class Flavour(Enum):
    """Whose edges the stub has: paths, gauges, the sense of priorities, when the head of an answer comes."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    LLAMA_SERVER = "llama-server"


@dataclass(frozen=True, slots=True)
class StubSettings:
    """``output_tokens`` of 0: as many as ``max_tokens`` allows, and ``default_output_tokens`` without one.
    ``slow_start_s``: how long the engine says that it is loading. ``kept_requests``: of ``/stub/requests``.
    ``native``: Messages and Responses are spoken, too, as some engines do."""

    flavour: Flavour = Flavour.VLLM
    latency: Parameters = field(default_factory=FixedParameters)
    host: str = "127.0.0.1"
    port: int = 0
    model: str = "stub-model"
    aliases: tuple[str, ...] = ()
    max_model_len: int = 131_072
    output_tokens: int = 0
    default_output_tokens: int = 64
    rules: tuple[Rule, ...] = ()
    faults: tuple[Fault, ...] = ()
    slow_start_s: float = 0.0
    kept_requests: int = 1024
    native: bool = False
