"""Templates of a folder, read again when they change. A bad new version leaves the old one in force."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Final

from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import Template
from dynbranch.rendering.following import Follower
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.problems import TemplateInvalid
from dynbranch.rendering.reading import parse_template
from dynbranch.rendering.yaml_text import MAX_CHARACTERS, MAX_TOLD_CHARACTERS

POLL_S = 2.0
"""How long a saved file may wait: a person who saved it looks for the log line at about that time."""

MAX_FILE_BYTES: Final = 4 * MAX_CHARACTERS
MAX_FOLDER_CHARACTERS: Final = 8 * MAX_CHARACTERS
"""Of all templates in force: every gateway is told them in one message."""


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
    text = _text_of(path)
    try:
        template = parse_template(text, str(path), JinjaRenderer)
        return LoadedTemplate(path, text, template, Follower(template), JinjaRenderer(template))
    except TemplateInvalid:
        raise
    # A file is anybody's, and four readers take part: whatever one of them says of a file is the file's
    # fault, and never ends who reads it.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:MAX_TOLD_CHARACTERS]}"
        raise TemplateInvalid((), (f"{path}:1: this can not be read: {reason}",)) from error


def _text_of(path: Path) -> str:
    """Raises TemplateInvalid, OSError. Waits for no pipe, and reads no device to its end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not S_ISREG(os.fstat(file.fileno()).st_mode):
            raise TemplateInvalid((), (f"{path}:1: this is no file",))
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise TemplateInvalid((), (f"{path}:1: the file is larger than {MAX_FILE_BYTES:,} bytes",))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TemplateInvalid((), (f"{path}:{line}: not UTF-8: {error.reason}",)) from None


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
        except OSError as error:
            return Rejected(path, f"{path}:1: {error.strerror or error}", kept)
        type_id = fresh.template.workflow_type
        for other, loaded in self._loaded.items():
            if other != path and loaded.template.workflow_type == type_id:
                reason = f"{path}:1: {other.name} already declares the workflow type {type_id!r}"
                return Rejected(path, reason, kept)
        others = sum(len(loaded.text) for other, loaded in self._loaded.items() if other != path)
        if others + len(fresh.text) > MAX_FOLDER_CHARACTERS:
            reason = f"{path}:1: the folder's templates have more than {MAX_FOLDER_CHARACTERS:,} characters"
            return Rejected(path, reason, kept)
        self._loaded[path] = fresh
        return Adopted(path, fresh.template)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
