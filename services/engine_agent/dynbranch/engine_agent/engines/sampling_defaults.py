"""What an engine samples with where a request is silent: from a model's ``generation_config.json``, or from
the engine's own report. Pure. Values are kept as JSON numbers, spelled as they are sent and fingerprinted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

NEUTRAL: Final[Mapping[str, str]] = {
    "temperature": "1.0",
    "top_p": "1.0",
    "top_k": "-1",
    "min_p": "0.0",
    "repetition_penalty": "1.0",
}
"""vLLM's and SGLang's defaults where neither a model nor an operator says otherwise."""

LENGTH_LIMIT: Final = "max_tokens"
"""Goes into the fingerprint and is not sent: engines take the least of it and of the room that is left."""

_OF_MODELS: Final = {"max_new_tokens": LENGTH_LIMIT}


def resolved(*documents: Mapping[str, Any]) -> dict[str, str]:
    """The defaults after each of these ``generation_config`` documents in turn."""
    defaults = dict(NEUTRAL)
    for document in documents:
        for name, value in document.items():
            name = _OF_MODELS.get(name, name)
            if (name in NEUTRAL or name == LENGTH_LIMIT) and _is_number(value):
                defaults[name] = json.dumps(value)
    return defaults


def reported(rendered: object) -> dict[str, str] | None:
    """The defaults in vLLM's answer to ``/v1/chat/completions/render`` of a request that sets none. None: it
    tells nothing. Its ``max_tokens`` is the room left after that prompt, and no default."""
    params = rendered.get("sampling_params") if isinstance(rendered, dict) else None
    if not isinstance(params, dict) or not all(_is_number(params.get(name)) for name in NEUTRAL):
        return None
    return {name: json.dumps(params[name]) for name in NEUTRAL}


def sent(defaults: Mapping[str, str]) -> dict[str, str]:
    """Those that go into a silent request."""
    return {name: value for name, value in defaults.items() if name in NEUTRAL}


def as_facts(defaults: Mapping[str, str]) -> dict[str, str]:
    return {f"default.{name}": value for name, value in defaults.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
