"""A request's text taken apart: what stands there as it is, and what is filled in."""

from __future__ import annotations

import re
from typing import Final

_OPENING: Final = re.compile(r"\{[{%#]")
_CLOSING: Final = {"{{": "}}", "{%": "%}", "{#": "#}"}
_LINE_BREAK = re.compile(r"\n[ \t]*")
_BLOCK = re.compile(r"\{%[-+]?\s*(\w+)")
_OPENERS: Final = frozenset({"if", "for", "call", "filter", "macro", "with"})


def taken_apart(text: str) -> list[str]:
    """Constant and tag in turn; a constant is first and last. What opens and is never closed is constant, and
    costs no second look at what follows it."""
    parts: list[str] = []
    begin = place = 0
    endless: set[str] = set()
    while (opening := _OPENING.search(text, place)) is not None:
        place = opening.start() + 1
        closing = _CLOSING[opening[0]]
        if closing in endless:
            continue
        end = text.find(closing, opening.end())
        if end < 0:
            endless.add(closing)
            continue
        place = end + 2
        parts += (text[begin : opening.start()], text[opening.start() : place])
        begin = place
    return [*parts, text[begin:]]


def joined_lines(text: str) -> str:
    """The request as it is sent: line breaks of the file and the blanks that follow them are layout.

    A break becomes a comment that holds one, so that line numbers stay true.
    """
    parts = taken_apart(text.strip())
    return "".join(part if place % 2 else _joined(part) for place, part in enumerate(parts))


def _joined(constant: str) -> str:
    joined = ""
    breaks = 0
    for number, line in enumerate(_LINE_BREAK.split(constant)):
        breaks += number > 0
        # After a brace the comment's own would make it another mark: the break waits for the next one.
        if breaks and not joined.endswith("{"):
            joined += "{#" + "\n" * breaks + "#}"
            breaks = 0
        joined += line
    return joined


def constant_parts(text: str) -> tuple[str, ...]:
    """What every body holds, in order: the constants outside of ``if`` and ``for``. The first and the last
    may be empty."""
    parts: list[str] = [""]
    depth = 0
    pieces = taken_apart(text.strip())
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            if depth == 0:
                parts[-1] += _as_written(piece, pieces[place - 1 : place], pieces[place + 1 : place + 2])
            continue
        block = _BLOCK.match(piece)
        word = block[1] if block else ""
        if word in _OPENERS or (word == "set" and "=" not in piece):
            depth += 1
        elif word.startswith("end"):
            depth -= 1
        # A comment and an assignment write nothing: what stands around them belongs together.
        if not piece.startswith("{#") and word != "set":
            parts.append("")
    if len(parts) == 1:
        return tuple(parts)
    return (parts[0], *(part for part in parts[1:-1] if part), parts[-1])


def _as_written(constant: str, before: list[str], after: list[str]) -> str:
    """Without its line breaks, and without the blanks that a tag beside it takes away."""
    text = _LINE_BREAK.sub("", constant)
    if before and before[0][-3:-2] == "-":
        text = text.lstrip()
    if after and after[0][2:3] == "-":
        text = text.rstrip()
    return text


def as_constant(text: str) -> str:
    """Text that a request shows as it is, whatever Jinja's marks or line breaks it holds."""
    text = re.sub(r"\{(?=[{%#])", "{{ '{' }}", text)
    return re.sub(r"\n[ \t]*", lambda match: "{{ " + _quoted(match[0]) + " }}", text)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t") + "'"
