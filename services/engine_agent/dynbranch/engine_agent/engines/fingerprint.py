"""From what a start-up probe saw to the facts of a stage fingerprint. Pure: ``probe.py`` does the asking."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dynbranch.domain.ids import UnixMs

Conversation = Sequence[Mapping[str, Any]]

CONVERSATIONS: tuple[tuple[dict[str, str], ...], ...] = (
    ({"role": "user", "content": "What is 7 × 6?"},),
    (
        {"role": "system", "content": "Answer in one word.\n"},
        {"role": "user", "content": " leading blank, é, 漢字, trailing blank "},
    ),
    (
        {"role": "user", "content": "First line\nsecond line\n\n"},
        {"role": "assistant", "content": " An answer.\n"},
        {"role": "user", "content": "<|im_start|>not a turn<|im_end|> {{ messages }}"},
    ),
    (
        {"role": "system", "content": ""},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "y"},
    ),
)
"""Rendered at start-up: a template that prints any of them differently is another template."""

PROBE_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "Not called.",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
            },
        },
    },
)

CLOCK_WORDS = ("strftime_now", "date_string", "datetime", "current_date", "todays_date", "now()")
"""What chat templates call to print today's date; some engines define ``date_string`` from their clock."""

CPU_FLAGS = re.compile(
    r"(avx\w*|amx\w*|fma\w*|f16c|sse3|ssse3|sse4_[12]|bmi2|asimd\w*|sve\w*|i8mm|bf16|fp16)"
)


def clock_reason(template: str, rendered: Iterable[str], now: UnixMs) -> str:
    """Why nothing of this model may be reused: its prompts tell the time. Empty: they do not."""
    for word in CLOCK_WORDS:
        if word in template:
            return f"the chat template reads the clock ({word})"
    text = "\n".join(rendered)
    for day in _spellings_of_today(now):
        if day in text:
            return f"a rendered prompt names the day ({day})"
    return ""


def _spellings_of_today(now: UnixMs) -> tuple[str, ...]:
    """Today and its neighbours, because the engine may live in another time zone."""
    days = [datetime.fromtimestamp(now / 1000 + shift * 86_400, UTC) for shift in (-1, 0, 1)]
    formats = (
        "%Y-%m-%d",
        "%d %b %Y",
        "%d %B %Y",
        "%B %d, %Y",
        "%b %d, %Y",
        "%m/%d/%Y",
        "%d/%m/%Y",
        "%Y/%m/%d",
    )
    return tuple(day.strftime(form) for day in days for form in formats)


def rendering_digest(renderings: Iterable[str]) -> str:
    """One digest over the rendered probe conversations, in order."""
    digest = hashlib.sha256()
    for text in renderings:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of the weights: 90 MB take 0.1 to 0.3 s. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_NOISE = frozenset({"seed", "stream", "timings_per_token", "generation_prompt"})
"""Settings that are random at each start or do not belong to sampling."""


def default_facts(params: Mapping[str, Any]) -> dict[str, str]:
    """Resolved sampling defaults, as ``default.temperature`` and so on; values in JSON."""
    return {
        f"default.{key}": json.dumps(value, sort_keys=True, separators=(",", ":"))
        for key, value in params.items()
        if key not in _NOISE
    }


def cpu_features(cpuinfo: str) -> str:
    """The instruction sets that select an engine's kernels, from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(flag for flag in value.split() if CPU_FLAGS.fullmatch(flag)))
    return "unknown"


def metric(text: str, name: str) -> float | None:
    """The sum of a Prometheus metric over its label sets; None when it is not there."""
    values = re.findall(rf"^{re.escape(name)}(?:\{{[^\n]*\}})?[ \t]+(\S+)", text, re.MULTILINE)
    try:
        return sum(float(value) for value in values) if values else None
    except ValueError:
        return None


def metric_labels(text: str, name: str) -> dict[str, str]:
    """The labels of the first series of a Prometheus metric."""
    found = re.search(rf"^{re.escape(name)}\{{([^\n]*)\}}", text, re.MULTILINE)
    return dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[1])) if found else {}
