"""Runs a module as if only what a lock file names were installed: ``only_locked.py LOCK MODULE ARGUMENT…``

Import of a file that belongs to any other distribution fails as it would in that service's image.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

PIN = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


class OnlyLocked:
    """A finder that comes first and finds nothing; it refuses what others would find in strange files."""

    def __init__(self, strange: frozenset[str]) -> None:
        self._strange = strange

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin in self._strange:
            raise ModuleNotFoundError(f"{name} is not in the lock file", name=name)
        return None


def strange_files(lock: Path) -> frozenset[str]:
    locked = {_normal(name) for name in PIN.findall(lock.read_text())} | {"dynbranch"}
    return frozenset(
        str(one.locate_file(file))
        for one in distributions()
        if _normal(one.metadata["Name"]) not in locked
        for file in one.files or ()
        if file.suffix in (".py", ".so")
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    _, lock_file, module, *arguments = sys.argv
    sys.meta_path.insert(0, OnlyLocked(strange_files(Path(lock_file))))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
