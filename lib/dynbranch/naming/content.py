"""Digests of content, by which an output is found again in a later request's messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from dynbranch.domain.ids import Digest
from dynbranch.naming.document import Json


def text_digest(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).digest())


def call_digest(name: str, arguments: str) -> Digest:
    """A tool call without its id: ids are made per run."""
    return text_digest(f"{name}\0{arguments}")


def body_digest(body: bytes) -> Digest:
    """A tool's result, byte for byte."""
    return Digest(hashlib.sha256(body).digest())


def text_of(content: Json) -> str:
    """The text of a message's content: the string, or its text parts joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(_part_text(part) for part in content)


def called_digests(tool_calls: Json) -> Iterator[Digest]:
    """One digest per call of an assistant message that has a name and a text of arguments."""
    for call in tool_calls if isinstance(tool_calls, list) else ():
        match call:
            case {"function": {"name": str() as name, "arguments": str() as arguments}}:
                yield call_digest(name, arguments)
            case {"custom": {"name": str() as name, "input": str() as text}}:
                yield call_digest(name, text)
            case _:
                pass


def _part_text(part: Json) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str() as text}:
            return text
        case _:
            return ""
