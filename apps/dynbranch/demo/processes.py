"""Starts processes, reads their ready lines, notices when one dies, and stops them all.

Each process writes its stdout to ``NAME.out`` and its stderr to ``NAME.log``: files, so that none waits for
a reader.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

LEASH = Path(__file__).with_name("leash.py")
LOG_TAIL_LINES = 15
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run: a name for people, the command, and its whole environment."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]


class ProcessDied(Exception):
    """A process ended although nobody told it to. The message shows the end of its log."""

    def __init__(self, name: str, code: int, log: Path) -> None:
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        tail = log_tail(log)
        super().__init__(f"{name} ended with {how}; the end of {log}:\n{tail or '  (the log is empty)'}")
        self.name = name


class StartTimedOut(Exception):
    """Not everything was ready in time. The message says what is missing."""


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    address: str = ""


class Processes:
    """Owns processes from ``start`` to ``stop``. They stop in the reverse of their order."""

    def __init__(self, specs: Sequence[ProcessSpec], log_dir: Path, *, stop_deadline_s: float = 10.0) -> None:
        self._specs = specs
        self._log_dir = log_dir
        self._stop_deadline_s = stop_deadline_s
        self._children: list[_Child] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every process at once; none waits for another. Call it from the main thread.

        Linux tells the children when the *thread* that started them ends.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        try:
            for spec in self._specs:
                self._children.append(self._spawn(spec))
        except BaseException:
            self.stop()
            raise

    def _spawn(self, spec: ProcessSpec) -> _Child:
        out, log = self._log_dir / f"{spec.name}.out", self._log_dir / f"{spec.name}.log"
        leash = (sys.executable, "-I", "-S", str(LEASH), str(os.getpid()))
        with out.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(
                (*leash, *spec.argv),
                env=dict(spec.environ),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # A Ctrl-C in the terminal is for the supervisor, which stops the others in their order.
                start_new_session=True,
            )
        return _Child(spec, process, out, log)

    @property
    def pids(self) -> dict[str, int]:
        return {child.spec.name: child.process.pid for child in self._children}

    def send(self, name: str, signum: signal.Signals) -> None:
        """For what wants to see a process paused or killed."""
        self._child(name).process.send_signal(signum)

    def start_again(self, name: str) -> None:
        """After its death; its files begin anew."""
        old = self._child(name)
        old.process.wait(self._stop_deadline_s)
        self._children[self._children.index(old)] = self._spawn(old.spec)

    def _child(self, name: str) -> _Child:
        return next(child for child in self._children if child.spec.name == name)

    def check(self) -> None:
        """Raises ProcessDied for the first process that has ended."""
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                raise ProcessDied(child.spec.name, code, child.log)

    def addresses(self) -> dict[str, str]:
        """The addresses that the ready lines named so far, by process name."""
        for child in self._children:
            if not child.address:
                child.address = _ready_address(child.out)
        return {child.spec.name: child.address for child in self._children if child.address}

    def wait_until(
        self, missing: Callable[[], str], *, timeout_s: float, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait until nothing is ``missing``. Raises ProcessDied or StartTimedOut."""
        deadline = time.monotonic() + timeout_s
        while what := missing():
            self.check()
            tell(what)
            if time.monotonic() > deadline:
                raise StartTimedOut(
                    f"after {timeout_s:.0f} s still missing: {what}; logs are in {self._log_dir}"
                )
            time.sleep(_POLL_S)

    def wait_for_lines(self, *, timeout_s: float, tell: Callable[[str], None] = lambda _: None) -> None:
        """Wait for every ready line. Raises ProcessDied or StartTimedOut."""

        def missing() -> str:
            there = self.addresses()
            return ", ".join(child.spec.name for child in self._children if child.spec.name not in there)

        self.wait_until(missing, timeout_s=timeout_s, tell=tell)

    def stop(self) -> None:
        """SIGTERM, one after the other, last started first; SIGKILL for what outlives the deadline."""
        deadline = time.monotonic() + self._stop_deadline_s
        while self._children:
            child = self._children.pop()
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
                try:
                    child.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    # The session is the child's own: whatever it started goes with it.
                    os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, indented; JSON log lines are reduced to their messages."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(f"  {_plain(line)}" for line in text.splitlines()[-lines:])


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. Held together while chosen, so that no two are the same."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _ready_address(out: Path) -> str:
    try:
        lines = out.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError:
        return ""
    for line in lines:
        if line.startswith('{"service"') and line.endswith("\n"):
            return str(json.loads(line).get("address", ""))
    return ""


def _plain(line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict) or "message" not in record:
        return line
    error = str(record.get("error", "")).replace("\n", "\n  ")
    return f"{record.get('level', '')}: {record['message']}" + (f"\n  {error}" if error else "")
