"""Methods of other packages' classes that are wrapped while something is attached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Patch:
    owner: type
    name: str
    original: Any
    ours: Any


class Patches:
    """``undo`` restores, last first. Where somebody has wrapped ours since, it stays where it is, and whoever
    made it sees to it that it does nothing any more."""

    def __init__(self) -> None:
        self._made: list[_Patch] = []

    def put(self, owner: type, name: str, wrapped: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        ours = wrapped(original)
        self._made.append(_Patch(owner, name, original if name in vars(owner) else None, ours))
        setattr(owner, name, ours)

    def undo(self) -> None:
        while self._made:
            patch = self._made.pop()
            if vars(patch.owner).get(patch.name) is not patch.ours:
                continue
            if patch.original is None:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.original)
