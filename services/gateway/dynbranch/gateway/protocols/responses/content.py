"""Contents of messages and results in Responses as content parts of Chat Completions.

Marks for a provider's prompt cache are not for the model and go. Members that are not known here go on to
the engine; what would have to be understood to be served is refused by name.
"""

from __future__ import annotations

from typing import Final

from dynbranch.gateway.protocols.parts import Part
from dynbranch.gateway.protocols.refusal import (
    missing,
    objects_in,
    text_at,
    unclaimed,
    unserved,
    wrong_type,
)
from dynbranch.naming.document import Json

INPUT_TEXT_MEMBERS: Final = frozenset({"type", "text", "prompt_cache_breakpoint"})
OUTPUT_TEXT_MEMBERS: Final = frozenset({"type", "text", "annotations", "logprobs"})
REFUSAL_MEMBERS: Final = frozenset({"type", "refusal"})
IMAGE_MEMBERS: Final = frozenset({"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"})
FILE_MEMBERS: Final = frozenset(
    {"type", "file_data", "file_id", "file_url", "filename", "detail", "prompt_cache_breakpoint"}
)
_OURS: Final = frozenset({"text", "image_url", "file"})
_KEPT_ELSEWHERE: Final = "files that are kept elsewhere can not be read by an engine"


def parts_of(content: Json, path: str) -> list[Part]:
    """A plain string is one text. Raises InvalidRequest."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None:
        raise missing(path)
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of content parts", content)
    return [_part(part, at) for at, part in objects_in(content, path)]


def _part(part: dict[str, Json], path: str) -> Part:
    match part.get("type"):
        case "input_text" | "text":
            return _text(part, INPUT_TEXT_MEMBERS, path)
        case "output_text":
            return _text(part, OUTPUT_TEXT_MEMBERS, path)
        case "refusal":
            return {
                "type": "text",
                "text": text_at(part, "refusal", path),
                **unclaimed(part, REFUSAL_MEMBERS, _OURS, path),
            }
        case "input_image":
            return _image(part, path)
        case "input_file":
            return _file(part, path)
        case str() as kind:
            raise unserved(f"{path}.type", f"contents of type {kind[:80]!r} are not known here")
        case None:
            raise missing(f"{path}.type")
        case other:
            raise wrong_type(f"{path}.type", "a string", other)


def _text(part: dict[str, Json], known: frozenset[str], path: str) -> Part:
    return {"type": "text", "text": text_at(part, "text", path), **unclaimed(part, known, _OURS, path)}


def _image(part: dict[str, Json], path: str) -> Part:
    if part.get("file_id") is not None:
        raise unserved(f"{path}.file_id", _KEPT_ELSEWHERE)
    image: dict[str, Json] = {"url": text_at(part, "image_url", path)}
    if part.get("detail") is not None:
        image["detail"] = text_at(part, "detail", path)
    return {"type": "image_url", "image_url": image, **unclaimed(part, IMAGE_MEMBERS, _OURS, path)}


def _file(part: dict[str, Json], path: str) -> Part:
    for key in ("file_id", "file_url"):
        if part.get(key) is not None:
            raise unserved(f"{path}.{key}", _KEPT_ELSEWHERE)
    if part.get("detail") not in (None, "auto"):
        raise unserved(f"{path}.detail", "files go to the engine as they are")
    file: dict[str, Json] = {}
    if part.get("filename") is not None:
        file["filename"] = text_at(part, "filename", path)
    file["file_data"] = text_at(part, "file_data", path)
    return {"type": "file", "file": file, **unclaimed(part, FILE_MEMBERS, _OURS, path)}
