"""The committed numbers of the workloads, each with the point it comes from: ``paper.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SHIPPED: Final = Path(__file__).parent / "paper.toml"


class NumbersInvalid(ValueError):
    """The file lacks a number, or one has no origin. The message names it."""


@dataclass(frozen=True, slots=True)
class Number:
    """``origin`` is the published point, or says that it is ours and why."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """One stage's sizes: ``system`` tokens begin each prompt, ``prompt`` is what else begins it, ``output``
    the median of what it writes."""

    system: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """By path, as ``routing.route.output_tokens``."""

    found: Mapping[str, Number]

    def __getitem__(self, path: str) -> Any:
        """Raises NumbersInvalid."""
        if path not in self.found:
            raise NumbersInvalid(f"there is no number {path}")
        return self.found[path].value

    def of(self, workload: str, name: str) -> Any:
        """A workload's own number, else that of every stream. Raises NumbersInvalid."""
        own = f"{workload}.{name}"
        return self[own if own in self.found else f"stream.{name}"]

    def tokens(self, stage: str) -> Tokens:
        """Raises NumbersInvalid."""
        return Tokens(
            self[f"{stage}.system_tokens"], self[f"{stage}.prompt_tokens"], self[f"{stage}.output_tokens"]
        )


def read_numbers(path: Path = SHIPPED) -> Numbers:
    """Raises NumbersInvalid, OSError."""
    return Numbers(dict(_leaves(tomllib.loads(path.read_text(encoding="utf-8")), "")))


def _leaves(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Number]]:
    if "value" in table:
        if set(table) != {"value", "from"} or not table["from"]:
            raise NumbersInvalid(f"{path} is a value and where it comes from, and no more")
        yield path, Number(table["value"], table["from"])
        return
    for name, inner in table.items():
        if not isinstance(inner, Mapping):
            raise NumbersInvalid(f"{path}.{name}".lstrip(".") + " does not say where it comes from")
        yield from _leaves(inner, f"{path}.{name}".lstrip("."))
