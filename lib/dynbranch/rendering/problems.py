"""What is wrong with a template, by its place in the file."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.domain.errors import DomainError


@dataclass(frozen=True, slots=True)
class Problem:
    """``place`` names keys and positions from the top of the file. ``line_in_text`` counts from 1 within the
    text that stands at that place, 0 where it does not matter."""

    place: tuple[str | int, ...]
    message: str
    line_in_text: int = 0


class TemplateInvalid(DomainError):
    """``problems`` say where; the message has one line for each once ``located`` has found its line."""

    def __init__(self, problems: tuple[Problem, ...], lines: tuple[str, ...] = ()) -> None:
        told = lines or tuple(f"{'.'.join(map(str, p.place))}: {p.message}" for p in problems)
        super().__init__("template_invalid", "\n".join(told), advice="docs/templates.md describes the file.")
        self.problems = problems
