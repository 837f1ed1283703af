"""A model's folder on this machine: what it says of itself, and a digest of everything that is in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynbranch.engine_agent.engines.fingerprint import file_digest

_TELLING = frozenset({".safetensors", ".bin", ".pt", ".gguf", ".json", ".jinja", ".model", ".txt", ".py"})
"""Weights, settings, tokenizers, templates and code; not pictures and readmes."""


Stamp = tuple[str | tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    path: Path

    def document(self, name: str) -> dict[str, Any]:
        """A JSON object in the folder; empty where there is none that can be read."""
        try:
            found = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def chat_template(self) -> str | None:
        try:
            return (self.path / "chat_template.jinja").read_text(encoding="utf-8")
        except (OSError, ValueError):
            template = self.document("tokenizer_config.json").get("chat_template")
            return template if isinstance(template, str) else None

    def facts(self) -> dict[str, str]:
        """How the weights are kept. What an engine makes of them, it must say itself."""
        config = self.document("config.json")
        quantisation = config.get("quantization_config")
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, dict) else "none"
        dtype = config.get("dtype") or config.get("torch_dtype") or "unknown"
        return {"weights.dtype": str(dtype), "quantisation": str(method)}

    def stamp(self) -> Stamp:
        """Changes when a file does: names, sizes in bytes and times of change in ns. Raises OSError."""
        told = ((name, file.stat()) for name, file in self._files())
        return (str(self.path), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in told))

    def digest(self) -> str:
        """SHA-256 over names and contents: about a second per gigabyte. Raises OSError."""
        whole = hashlib.sha256()
        for name, file in self._files():
            whole.update(f"{name}\n{file_digest(file)}\n".encode())
        return whole.hexdigest()

    def _files(self) -> Iterator[tuple[str, Path]]:
        for file in sorted(self.path.rglob("*")):
            name = file.relative_to(self.path)
            if file.suffix in _TELLING and file.is_file() and not any(p.startswith(".") for p in name.parts):
                yield name.as_posix(), file


def find_model(model: str, revision: str, environ: Mapping[str, str]) -> ModelFolder | None:
    """A whole path, or a hub's name for what its client has downloaded already. None: not on this machine. A
    relative path means something to the server that was started with it, and nothing to others."""
    path = Path(model)
    if path.is_absolute():
        return ModelFolder(path) if path.is_dir() else None
    if not model:
        return None
    home = (
        environ.get("HF_HUB_CACHE")
        or Path(environ.get("HF_HOME") or Path.home() / ".cache/huggingface") / "hub"
    )
    cached = Path(home) / f"models--{model.replace('/', '--')}"
    try:
        commit = (cached / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = cached / "snapshots" / commit
    return ModelFolder(snapshot) if commit and snapshot.is_dir() else None
