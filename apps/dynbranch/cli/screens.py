"""What tables of ids need: room where nobody's terminal ends, and times as people read them."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console

_ROOM = 100_000
"""Columns, where the output is a pipe or a file: what is cut off there is lost to whoever reads it."""


def console_for_tables() -> Console:
    """As wide as the terminal, and of any width where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_ROOM)


def local_time(unix_ms: int) -> str:
    """In this machine's zone, to the second."""
    return f"{datetime.fromtimestamp(unix_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def without_units(key: str) -> str:
    """``opened_unix_ms`` is shown as ``opened``, as a time."""
    return key.removesuffix("_unix_ms")
