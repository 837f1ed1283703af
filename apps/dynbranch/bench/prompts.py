"""The requests of the gateway's benchmarks, and the script that paces the stub engine's answers."""

from __future__ import annotations

from collections.abc import Mapping

MODEL = "stub-model"
SHORT_TOKENS = 16
TOKEN_MS = 20
_PACED = "slowly"
_QUESTION = "A question about the water cycle that nobody asked before. " * 8

CONDITIONS = {
    "engine": "dynbranch stub-engine",
    "prompt": f"{len(_QUESTION)} characters, another number in each",
    "short_answer": f"{SHORT_TOKENS} tokens, no delay",
    "paced_stream": f"a token every {TOKEN_MS} ms",
}

RULES: tuple[Mapping[str, object], ...] = (
    {"match": {"contains": _PACED}, "reply": {"ttft_ms": 0, "token_ms": TOKEN_MS}},
)
TOKEN_BYTES = 4
"""Of the stub engine's toy tokenizer."""


def sampled(tokens: int) -> dict[str, object]:
    """Nothing of it can be reused."""
    return _chat(_QUESTION, tokens) | {"temperature": 0.7}


def greedy(tokens: int) -> dict[str, object]:
    return _chat(_QUESTION, tokens) | {"temperature": 0}


def streamed(body: Mapping[str, object]) -> dict[str, object]:
    return {**body, "stream": True}


def paced(tokens: int) -> dict[str, object]:
    """Sampled, streamed, with the engine's pace."""
    return streamed(_chat(f"{_PACED} {_QUESTION}", tokens) | {"temperature": 0.7})


def _chat(text: str, tokens: int) -> dict[str, object]:
    # "{n}" is where the load puts its number.
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{text}{{n}}"}], "max_tokens": tokens}
