"""Lines in files that stay small: a full one is put aside under a number, and the oldest goes.

``traffic.jsonl`` is written, ``traffic.jsonl.1`` was full last, ``traffic.jsonl.2`` before it. One process
writes. Nobody but the owner may read any of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

_LOOK_BACK_BYTES = 2**16
_OWNER_ONLY = 0o600


class LinesLost(Exception):
    """So many lines are not in the file, and why. What is in it are whole lines."""

    def __init__(self, count: int, why: str) -> None:
        super().__init__(f"{count} lines are lost: {why}")
        self.count = count
        self.why = why


class RecordFile:
    """At most ``files`` of at most ``file_bytes`` each. It is opened anew each time, so that it may be moved
    away or deleted."""

    def __init__(self, path: Path, *, file_bytes: int, files: int) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._files = files

    def append(self, lines: Sequence[bytes]) -> None:
        """Each ends with its line break. Raises LinesLost."""
        fitting = [line for line in lines if len(line) <= self._file_bytes]
        written = 0
        try:
            while written < len(fitting):
                written += self._append_some(fitting[written:])
        except OSError as problem:
            raise LinesLost(len(lines) - written, str(problem)) from problem
        if too_long := len(lines) - len(fitting):
            raise LinesLost(too_long, f"longer than the {self._file_bytes} bytes of a file")

    def _append_some(self, lines: Sequence[bytes]) -> int:
        """As many as the file has room for, all or none; where it has none the next file is begun. Raises
        OSError."""
        file = _opened(self._path)
        try:
            size = _whole_lines(file)
            fits = _fitting(lines, self._file_bytes - size)
            if not fits:
                self._put_aside()
                return 0
            try:
                _write(file, b"".join(lines[:fits]))
            except OSError:
                # A disk that is full takes the beginning of a line.
                os.ftruncate(file, size)
                raise
            return fits
        finally:
            os.close(file)

    def _put_aside(self) -> None:
        for number in range(self._files - 1, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(older)
        if self._files == 1:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _opened(path: Path) -> int:
    """Raises OSError, also where it is not a file of ours: a link may lead anywhere, and a pipe waits."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, _OWNER_ONLY)
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"{path} is no file")
        if stat.S_IMODE(mode) != _OWNER_ONLY:
            os.fchmod(file, _OWNER_ONLY)
    except OSError:
        os.close(file)
        raise
    return file


def _whole_lines(file: int) -> int:
    """Cuts off the piece of a line that a killed process or a full disk left; how long the rest is."""
    size = at = os.fstat(file).st_size
    while at:
        begin = max(0, at - _LOOK_BACK_BYTES)
        if (found := os.pread(file, at - begin, begin).rfind(b"\n")) >= 0:
            at = begin + found + 1
            break
        at = begin
    if at < size:
        os.ftruncate(file, at)
    return at


def _fitting(lines: Sequence[bytes], room: int) -> int:
    for number, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return number
    return len(lines)


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
