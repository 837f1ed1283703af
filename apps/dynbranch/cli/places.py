"""Finds the running stack: the option, else DYNBRANCH_URL, else the newest one that runs below ./var."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dynbranch.cli.failures import CliFailure

URL_VARIABLE = "DYNBRANCH_URL"
_ADVICE = f"Start a stack with 'dynbranch up', or name its gateway with --gateway or {URL_VARIABLE}."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stack listens."""

    gateway: str


def find(gateway: str | None, *, here: Path | None = None, environ: Mapping[str, str] = os.environ) -> Place:
    """Raises CliFailure when nothing is named and nothing runs."""
    named = gateway or environ.get(URL_VARIABLE, "")
    if named:
        return Place(named.rstrip("/") if "://" in named else f"http://{named.rstrip('/')}")
    for place in running(here or Path.cwd()):
        return place
    raise CliFailure("no stack runs that was started here and keeps its state below ./var", _ADVICE)


def running(here: Path) -> Iterator[Place]:
    """The stacks that run and keep their state below ``here/var``, the newest first."""
    for file in sorted(here.glob("var/*/stack.json"), reverse=True):
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            os.kill(state["pid"], 0)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        yield Place(state["gateway"])
