"""The numbers of an engine model, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class UnknownPreset(ValueError):
    """There is no preset of that name. The message names those there are."""


@dataclass(frozen=True, slots=True)
class BatchParameters:
    """A continuous-batching engine; docs/stub-engine.md has the equations.

    One step takes ``decode_step_ms``, from two sequences on ``batched_extra_ms`` more, ``sequence_ms`` for
    each sequence, ``kilotoken_ms`` for each 1000 tokens of context that are read, and the time of the prefill
    chunk in it. ``slots`` is vLLM's max_num_seqs. ``block_tokens`` of 0: no prefix cache.
    """

    decode_step_ms: float
    batched_extra_ms: float
    sequence_ms: float
    kilotoken_ms: float
    prefill_tokens_per_s: float
    kv_pool_tokens: int
    prefill_chunk_tokens: int = 2048
    slots: int = 256
    block_tokens: int = 16

    def __post_init__(self) -> None:
        times = (self.decode_step_ms, self.batched_extra_ms, self.sequence_ms, self.kilotoken_ms)
        if min(times) < 0 or self.decode_step_ms == 0:
            raise ValueError("the times of a step are not negative, and a step takes some time")
        if self.prefill_tokens_per_s <= 0 or self.prefill_chunk_tokens < 1 or self.slots < 1:
            raise ValueError("prefill speed, prefill chunk and slots are positive")
        if self.kv_pool_tokens < 1 or self.block_tokens < 0:
            raise ValueError("the KV pool holds at least one token, and a block is not negative")

    def decode_ms(self, sequences: int, context_tokens: int) -> float:
        """The decode part of one step."""
        extra_ms = self.batched_extra_ms if sequences > 1 else 0.0
        return (
            self.decode_step_ms
            + extra_ms
            + self.sequence_ms * sequences
            + self.kilotoken_ms * context_tokens / 1000
        )


@dataclass(frozen=True, slots=True)
class FixedParameters:
    """The same times at every load, for clean comparisons. A request beyond ``slots`` waits."""

    time_to_first_token_ms: float = 0.0
    inter_token_ms: float = 0.0
    slots: int = 4096
    kv_pool_tokens: int = 1_000_000
    block_tokens: int = 16

    def __post_init__(self) -> None:
        if min(self.time_to_first_token_ms, self.inter_token_ms) < 0:
            raise ValueError("times are not negative")
        if self.slots < 1 or self.kv_pool_tokens < 1 or self.block_tokens < 0:
            raise ValueError("slots and the KV pool are positive, and a block is not negative")


Parameters = BatchParameters | FixedParameters

H200_QWEN3_32B = BatchParameters(
    decode_step_ms=17.0,
    batched_extra_ms=0.51,
    sequence_ms=0.02,
    kilotoken_ms=0.068,
    prefill_tokens_per_s=10_000,
    kv_pool_tokens=255_000,
)
"""Qwen3-32B in BF16 on one H200.

Step: 4.6 s for 270 tokens, which is 65.5 GB of weights at 80 % of 4.8 TB/s. From two sequences on 3 % more
(the paper's Fig. 5b at one fill). Per sequence: assumed. Context: 256 KiB a token at 3.85 TB/s. Prefill:
about 65 % of the peak FLOP/s. Pool: 0.9 · 141 − 61 − 4 GiB of 256 KiB. These follow published points;
nothing was fitted to a measurement of ours.
"""

RTX4090_QWEN3_8B = BatchParameters(
    decode_step_ms=19.1,
    batched_extra_ms=0.573,
    sequence_ms=0.02,
    kilotoken_ms=0.172,
    prefill_tokens_per_s=6_000,
    kv_pool_tokens=36_000,
)
"""Qwen3-8B in BF16 on one RTX 4090: 16.4 GB of weights at 85 % of 1.01 TB/s; 144 KiB of context a token. The
share for two sequences and more and the time per sequence are taken over from the 32B model."""

PRESETS: Mapping[str, Parameters] = MappingProxyType(
    {
        "fixed": FixedParameters(),
        "h200-qwen3-32b": H200_QWEN3_32B,
        "rtx4090-qwen3-8b": RTX4090_QWEN3_8B,
    }
)


def preset(name: str) -> Parameters:
    """Raises UnknownPreset."""
    if name not in PRESETS:
        raise UnknownPreset(f"there is no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
