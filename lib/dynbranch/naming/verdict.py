"""May a result of this request be reused? Only what greedy decoding makes out of the request alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dynbranch.domain.reuse import Fingerprint
from dynbranch.naming.document import Json, Number, emit
from dynbranch.naming.exact import exact_spelling
from dynbranch.naming.fields import CHAT, CLIENT_SIDE_TOOLS, OUTSIDE_PART, SERVER_SIDE_TOOL, Denial, Field

DEFAULT_TEMPERATURE: Final = "default.temperature"
DEFAULT_TOP_K: Final = "default.top_k"
"""Fingerprint facts: what the engine samples with where a request is silent. JSON numbers."""

_ZERO: Final = exact_spelling("0")
_ONE: Final = exact_spelling("1")


@dataclass(frozen=True, slots=True)
class ReuseVerdict:
    """``reason`` is a stable word, ``explanation`` a sentence for people. ``param`` is the field that
    decided, if any."""

    reusable: bool
    reason: str
    explanation: str
    param: str = ""


TOOL_VERDICT: Final = ReuseVerdict(True, "tool", "A tool result is reused as far as its source allows.")


def judge(body: dict[str, Json], fingerprint: Fingerprint | None) -> ReuseVerdict:
    """The verdict on a checked Chat Completions body."""
    greedy = _greedy(body, dict(fingerprint.facts) if fingerprint is not None else {})
    if not greedy.reusable:
        return greedy
    for name, value in body.items():
        field = CHAT.fields.get(name)
        if field is not None and field.denial is not None and not _is_harmless(value, field):
            return _denied(name, field.denial)
    for index, tool in enumerate(_listed(body.get("tools"))):
        kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
        if not isinstance(kind, str) or kind not in CLIENT_SIDE_TOOLS:
            return _denied(f"tools[{index}].type", SERVER_SIDE_TOOL)
    for path, part in _parts(body):
        if not _holds_its_content(part):
            return _denied(path, OUTSIDE_PART)
    return greedy


def _parts(body: dict[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """Every content part of the messages that is more than a text; audio answers referred to by id too."""
    for number, message in enumerate(_listed(body.get("messages"))):
        if not isinstance(message, dict):
            continue
        if isinstance(message.get("audio"), dict):
            yield f"messages[{number}].audio", {"type": "audio"}
        for index, part in enumerate(_listed(message.get("content"))):
            if isinstance(part, dict):
                yield f"messages[{number}].content[{index}]", part


def _holds_its_content(part: dict[str, Json]) -> bool:
    match part:
        case {"uuid": _}:
            return False
        case {"type": "text" | "refusal" | "input_audio"}:
            return True
        case {"type": "image_url" | "video_url" | "audio_url" as kind}:
            held = part.get(kind)
            url = held.get("url") if isinstance(held, dict) else held
            return isinstance(url, str) and url.startswith("data:")
        case {"type": "file", "file": dict() as file}:
            return "file_data" in file and "file_id" not in file
        case _:
            return False


def _greedy(body: dict[str, Json], facts: dict[str, str]) -> ReuseVerdict:
    temperature, temperature_from = _resolved(body, "temperature", facts.get(DEFAULT_TEMPERATURE))
    if temperature == _ZERO:
        return ReuseVerdict(True, "greedy", f"Decoding is greedy: {temperature_from} is 0.", "temperature")
    top_k, top_k_from = _resolved(body, "top_k", facts.get(DEFAULT_TOP_K))
    if top_k == _ONE:
        return ReuseVerdict(True, "greedy", f"Decoding is greedy: {top_k_from} is 1.", "top_k")
    silent = temperature is None
    why = "the request sets no temperature" if silent else f"{temperature_from} is not 0"
    return ReuseVerdict(
        False, "sampled", f"Decoding is sampled: {why}, and top_k is not 1.", "" if silent else "temperature"
    )


def _resolved(body: dict[str, Json], name: str, default: str | None) -> tuple[str | None, str]:
    """The setting's exact value and where it comes from. Null in a request means "not given" to every
    engine."""
    value = body.get(name)
    if isinstance(value, Number):
        return exact_spelling(value.text), name
    if value is None and default is not None:
        return _exact_fact(default), f"the engine's default {name}"
    return None, name


def _exact_fact(text: str) -> str | None:
    try:
        return exact_spelling(text)
    except ValueError:
        return None


def _is_harmless(value: Json, field: Field) -> bool:
    if value is None:
        return True
    if isinstance(value, Number):
        return exact_spelling(value.text) in {exact_spelling(t) for t in field.harmless if _is_number(t)}
    return emit(value) in field.harmless


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _denied(param: str, denial: Denial) -> ReuseVerdict:
    return ReuseVerdict(False, denial.reason, f"'{param}' prevents reuse: {denial.explanation}.", param)


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
