"""Content blocks of Messages as content parts of Chat Completions.

Marks for a provider's prompt cache (``cache_control``) are not for the model and go. Members of texts and
images that are not known here go on to the engine; what would have to be understood to be served is refused
by name.
"""

from __future__ import annotations

from typing import Final

from dynbranch.gateway.protocols.parts import Part
from dynbranch.gateway.protocols.refusal import (
    beyond,
    missing,
    objects_in,
    only,
    text_at,
    unserved,
    wrong_type,
)
from dynbranch.naming.document import Json

TEXT_MEMBERS: Final = frozenset({"type", "text", "cache_control", "citations"})
IMAGE_MEMBERS: Final = frozenset({"type", "source", "cache_control", "transformations"})
DOCUMENT_MEMBERS: Final = frozenset({"type", "source", "cache_control", "citations", "context", "title"})
SEARCH_RESULT_MEMBERS: Final = frozenset({"type", "source", "title", "content", "cache_control", "citations"})
_BASE64_MEMBERS: Final = frozenset({"type", "media_type", "data"})
_URL_MEMBERS: Final = frozenset({"type", "url"})


def blocks_in(content: Json, path: str) -> list[dict[str, Json]]:
    """The blocks of a content, which as a plain string is one text. Raises InvalidRequest."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None:
        raise missing(path)
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of content blocks", content)
    return [block for _, block in objects_in(content, path)]


def parts_of(block: dict[str, Json], path: str) -> list[Part]:
    """What a person or a tool says in one block. Raises InvalidRequest."""
    match block.get("type"):
        case "text":
            return [text_part(block, path)]
        case "image":
            return [_image(block, path)]
        case "document":
            return _document(block, path)
        case "search_result":
            return _search_result(block, path)
        case str() as kind:
            raise unserved(f"{path}.type", f"blocks of type {kind[:80]!r} are not known here")
        case None:
            raise missing(f"{path}.type")
        case other:
            raise wrong_type(f"{path}.type", "a string", other)


def text_part(block: dict[str, Json], path: str) -> Part:
    if block.get("citations"):
        raise unserved(f"{path}.citations", "citations can not be told to an engine")
    return {"type": "text", "text": text_at(block, "text", path), **beyond(block, TEXT_MEMBERS)}


def _image(block: dict[str, Json], path: str) -> Part:
    if block.get("transformations") is not None:
        raise unserved(f"{path}.transformations", "images go to the engine as they are")
    source = _source(block, path)
    match source.get("type"):
        case "base64":
            only(source, _BASE64_MEMBERS, f"{path}.source")
            url = _data_url(source, f"{path}.source")
        case "url":
            only(source, _URL_MEMBERS, f"{path}.source")
            url = text_at(source, "url", f"{path}.source")
        case kind:
            raise _no_source(path, kind)
    return {"type": "image_url", "image_url": {"url": url}, **beyond(block, IMAGE_MEMBERS)}


def _document(block: dict[str, Json], path: str) -> list[Part]:
    only(block, DOCUMENT_MEMBERS, path)
    _no_citations(block, path)
    source = _source(block, path)
    heads = [text_at(block, key, path) for key in ("title", "context") if block.get(key) is not None]
    match source.get("type"):
        case "text":
            only(source, _BASE64_MEMBERS, f"{path}.source")
            heads.append(text_at(source, "data", f"{path}.source"))
            return [{"type": "text", "text": "\n\n".join(heads)}]
        case "content":
            only(source, frozenset({"type", "content"}), f"{path}.source")
            inner = f"{path}.source.content"
            held = [
                part
                for index, inside in enumerate(blocks_in(source.get("content"), inner))
                for part in parts_of(inside, f"{inner}[{index}]")
            ]
            return [*_texts(heads), *held]
        case "base64":
            only(source, _BASE64_MEMBERS, f"{path}.source")
            file: dict[str, Json] = {"file_data": _data_url(source, f"{path}.source")}
            if block.get("title") is not None:
                file = {"filename": block["title"], **file}
            return [*_texts(heads[1:] if "filename" in file else heads), {"type": "file", "file": file}]
        case kind:
            raise _no_source(path, kind)


def _search_result(block: dict[str, Json], path: str) -> list[Part]:
    only(block, SEARCH_RESULT_MEMBERS, path)
    _no_citations(block, path)
    heads = [text_at(block, "title", path), text_at(block, "source", path)]
    inner = f"{path}.content"
    texts = [
        text_part(inside, f"{inner}[{index}]")
        for index, inside in enumerate(blocks_in(block.get("content"), inner))
    ]
    return [*_texts(heads), *texts]


def _texts(texts: list[str]) -> list[Part]:
    return [{"type": "text", "text": "\n".join(texts)}] if texts else []


def _source(block: dict[str, Json], path: str) -> dict[str, Json]:
    source = block.get("source")
    if source is None:
        raise missing(f"{path}.source")
    if not isinstance(source, dict):
        raise wrong_type(f"{path}.source", "an object", source)
    return source


def _data_url(source: dict[str, Json], path: str) -> str:
    return f"data:{text_at(source, 'media_type', path)};base64,{text_at(source, 'data', path)}"


def _no_source(path: str, kind: Json) -> Exception:
    named = f"{kind[:80]!r}" if isinstance(kind, str) else "this type"
    return unserved(f"{path}.source.type", f"a source of {named} is kept where the engine can not read it")


def _no_citations(block: dict[str, Json], path: str) -> None:
    match block.get("citations"):
        case None | {"enabled": False} | {"enabled": None}:
            return
        case {**members} if not members:
            return
        case _:
            raise unserved(f"{path}.citations", "engines give no citations")
