"""The menu that an output offers: items of a JSON list, choices of a JSON object, or a numbered list."""

from __future__ import annotations

import json
import re
from typing import Any

LONGEST_ITEM = 200
MOST_ITEMS = 64
MOST_CHARACTERS = 65_536
_TITLES = ("id", "name", "title", "label", "value", "text")
_NUMBERED = re.compile(r"^[ \t]*(?:\(?(?:\d{1,2}|[a-zA-Z])[.):]|[-*•])[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_BOLD = re.compile(r"^(\*\*|__|`)(.+?)\1")
_EXPLAINED = re.compile(r"\s+[-–—]\s+|:\s")


def read_menu(text: str) -> tuple[str, ...]:
    """The items in their order, each once; empty where the text holds no list of at least two.

    JSON comes first, whole or the first ``[`` … in the text; then the longest list of numbered or dotted
    lines, each without its mark and what explains it.
    """
    text = text[:MOST_CHARACTERS]
    items = _in_json(text) or _in_lines(text)
    return items[:MOST_ITEMS] if len(items) > 1 else ()


def _in_json(text: str) -> tuple[str, ...]:
    decoder = json.JSONDecoder()
    for opening in re.finditer(r"[\[{]", text):
        try:
            value, _ = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            continue
        items = _items(value)
        if len(items) > 1:
            return items
        if opening.start() == len(text) - len(text.lstrip()):
            return ()
    return ()


def _items(value: Any) -> tuple[str, ...]:
    """Of the longest list in a value, nested in objects at any depth but in no other list."""
    lists: list[tuple[str, ...]] = []
    waiting: list[Any] = [value]
    while waiting:
        match waiting.pop(0):
            case list() as found:
                lists.append(_distinct([_title(item) for item in found]))
            case dict() as found:
                waiting.extend(found.values())
    return max(lists, key=len, default=())


def _title(item: Any) -> str:
    if isinstance(item, dict):
        return next((item[key] for key in _TITLES if isinstance(item.get(key), str)), "")
    if isinstance(item, bool):
        return ""
    return str(item) if isinstance(item, str | int | float) else ""


def _in_lines(text: str) -> tuple[str, ...]:
    return _distinct([_bare(match[1]) for match in _NUMBERED.finditer(text)])


def _bare(line: str) -> str:
    if bold := _BOLD.match(line):
        return bold[2]
    return _EXPLAINED.split(line, maxsplit=1)[0].rstrip(" .;,")


def _distinct(items: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for item in items if 0 < len(item) <= LONGEST_ITEM))
