"""Other gateways, each in a virtual environment of its own in the cache directory, its version named here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dynbranch.bench.result import Tell

_INSTALL_TIMEOUT_S = 900
_MARK = "installed.txt"
_LOG_LINES = 5


@dataclass(frozen=True, slots=True)
class Peer:
    """A package of the Python index and the program in it."""

    name: str
    requirement: str
    program: str

    @property
    def version(self) -> str:
        return self.requirement.partition("==")[2]


LITELLM = Peer("litellm", "litellm[proxy,proxy-runtime,extra_proxy]==1.108.7", "litellm")
VLLM_ROUTER = Peer("vllm-router", "vllm-router==0.1.17", "vllm-router")


class PeerMissing(Exception):
    """A peer could not be installed. The message says what to run by hand."""


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dynbranch", "peers")


def program(peer: Peer, tell: Tell) -> Path:
    """The peer's program, installed now if it is not there yet. Raises PeerMissing."""
    folder = cache_dir() / f"{peer.name}-{peer.version}"
    if not (folder / _MARK).exists():
        tell(f"installing {peer.name} {peer.version}, once", 0, 0)
        _install(peer, folder)
    return folder / "bin" / peer.program


def versions(peer: Peer) -> list[str]:
    """Every package beside the peer, as ``name==version``."""
    return (cache_dir() / f"{peer.name}-{peer.version}" / _MARK).read_text(encoding="utf-8").split()


def _install(peer: Peer, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    create: tuple[str, ...]
    install: tuple[str, ...]
    listing: tuple[str, ...]
    if uv:
        create = (uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        install = (uv, "pip", "install", "--quiet", "--python", python, peer.requirement)
        listing = (uv, "pip", "freeze", "--python", python)
    else:
        create = (sys.executable, "-m", "venv", str(folder))
        install = (python, "-m", "pip", "install", "--quiet", peer.requirement)
        listing = (python, "-m", "pip", "freeze")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in (create, install):
        _run(peer, command)
    found = "\n".join(line for line in _run(peer, listing).splitlines() if "==" in line)
    (folder / _MARK).write_text(found + "\n", encoding="utf-8")


def _run(peer: Peer, command: tuple[str, ...]) -> str:
    by_hand = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"{peer.name} is not installed: {error}; by hand: {by_hand}") from error
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-_LOG_LINES:])
        raise PeerMissing(f"{peer.name} is not installed; this failed: {by_hand}\n{said}")
    return done.stdout
