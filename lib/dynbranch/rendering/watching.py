"""Templates of a folder, read again when they change. A bad new version leaves the old one in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import Template
from dynbranch.rendering.following import Follower
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.reading import parse_template

POLL_S = 2.0
"""How long a saved file may wait: a person who saved it looks for the log line at about that time."""


@dataclass(frozen=True, slots=True)
class LoadedTemplate:
    """One version in force: its text, its values, what reads with it, and what writes with it."""

    file: Path
    text: str
    template: Template
    follower: Follower
    renderer: JinjaRenderer


def load_template(path: Path) -> LoadedTemplate:
    """Raises TemplateInvalid, whose message names file and line of every problem; OSError."""
    text = path.read_text(encoding="utf-8")
    template = parse_template(text, str(path), JinjaRenderer)
    return LoadedTemplate(path, text, template, Follower(template), JinjaRenderer(template))


@dataclass(frozen=True, slots=True)
class Adopted:
    """A file came, or changed."""

    file: Path
    template: Template


@dataclass(frozen=True, slots=True)
class Rejected:
    """A file can not be used. ``kept``: an older version of it stays in force."""

    file: Path
    reason: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A file is gone, and its template with it."""

    file: Path
    workflow_type: str


Change = Adopted | Rejected | Withdrawn
_Stamp = tuple[int, int, int]


class TemplateFolder:
    """Polls by time of change, size and inode, so that a file replaced by renaming is seen too.

    Blocks for a moment on the disk: call ``poll`` off the event loop where that matters.
    """

    def __init__(self, folder: Path, *, poll_s: float = POLL_S) -> None:
        self._folder = folder
        self._poll_s = poll_s
        self._next: Instant | None = None
        self._stamps: dict[Path, _Stamp] = {}
        self._loaded: dict[Path, LoadedTemplate] = {}

    @property
    def in_force(self) -> Mapping[str, LoadedTemplate]:
        """By workflow type."""
        return MappingProxyType({one.template.workflow_type: one for one in self._loaded.values()})

    def poll(self, now: Instant) -> tuple[Change, ...]:
        """Look again, but not more often than every ``poll_s`` seconds."""
        if self._next is not None and now < self._next:
            return ()
        self._next = Instant(now + self._poll_s)
        stamps = {path: stamp for path in self._files() if (stamp := _stamp(path)) is not None}
        changes: list[Change] = []
        for path in [path for path in self._stamps if path not in stamps]:
            del self._stamps[path]
            gone = self._loaded.pop(path, None)
            if gone is not None:
                changes.append(Withdrawn(path, gone.template.workflow_type))
        for path, stamp in stamps.items():
            if self._stamps.get(path) != stamp:
                self._stamps[path] = stamp
                changes.append(self._read(path))
        return tuple(changes)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*.y*ml") if path.suffix in (".yaml", ".yml"))

    def _read(self, path: Path) -> Change:
        kept = path in self._loaded
        try:
            fresh = load_template(path)
        except DomainError as error:
            return Rejected(path, error.message, kept)
        except (OSError, UnicodeDecodeError) as error:
            return Rejected(path, f"{path}: {error}", kept)
        type_id = fresh.template.workflow_type
        for other, loaded in self._loaded.items():
            if other != path and loaded.template.workflow_type == type_id:
                reason = f"{path}:1: {other.name} already declares the workflow type {type_id!r}"
                return Rejected(path, reason, kept)
        self._loaded[path] = fresh
        return Adopted(path, fresh.template)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
