"""How long what is said is. A content's length depends on nothing but the content and the stream's seed, so
that equal requests are of equal length wherever they come."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from math import exp
from statistics import NormalDist

from dynbranch.enginemodel.messages import Block

BLOCK_TOKENS = 16
_NORMAL = NormalDist()
_CONVERSATION = 4096
"""How many blocks a conversation may have."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal around a median. ``scales``: by stage, what its median is multiplied by."""

    seed: int
    spread: float
    scales: dict[str, float] = field(default_factory=dict)

    def output(self, stage: str, median: float, content: str) -> int:
        return self._drawn(median * self.scales.get(stage, 1.0), f"output {content}")

    def prompt(self, median: float, content: str) -> int:
        return self._drawn(median, f"prompt {content}")

    def seconds(self, median: float, spread: float, content: str) -> float:
        """Of a person."""
        return median * exp(spread * self._normal(f"gap {content}"))

    def _drawn(self, median: float, what: str) -> int:
        return max(1, round(median * exp(self.spread * self._normal(what))))

    def _normal(self, what: str) -> float:
        digest = hashlib.blake2b(f"{self.seed} {what}".encode(), digest_size=6).digest()
        return _NORMAL.inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2**48)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Blocks that others may have, too: a stage's instructions, and a conversation that goes on.

    ``kept`` False: no request knows of another's beginning. Blocks that nobody can share are left out; an
    engine holds their tokens all the same.
    """

    kept: bool = True

    def shared(self, stage: int, system_tokens: int) -> tuple[Block, ...]:
        """``stage`` counts the stages of a workload."""
        if not self.kept:
            return ()
        return tuple(
            range(-(stage + 1) * _CONVERSATION, -(stage + 1) * _CONVERSATION + _blocks(system_tokens))
        )

    def conversation(
        self, shared: tuple[Block, ...], talk: int, prompt_tokens: int, output_tokens: int
    ) -> tuple[Block, ...]:
        """``talk`` counts the conversations; ``shared`` begins it."""
        if not self.kept:
            return ()
        whole = _blocks(prompt_tokens + output_tokens) - len(shared)
        return (*shared, *range(talk * _CONVERSATION, talk * _CONVERSATION + min(whole, _CONVERSATION)))


def _blocks(tokens: int) -> int:
    return tokens // BLOCK_TOKENS
