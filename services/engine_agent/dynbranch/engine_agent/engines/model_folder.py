"""A model's folder on this machine: what it says of itself, and a digest of everything that is in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynbranch.engine_agent.engines.fingerprint import file_digest

_TELLING = frozenset({".safetensors", ".bin", ".pt", ".gguf", ".json", ".jinja", ".model", ".txt", ".py"})
"""Weights, settings, tokenizers, templates and code; not pictures and readmes."""


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

    def digest(self) -> str:
        """SHA-256 over names and contents: about a second per gigabyte. Raises OSError."""
        whole = hashlib.sha256()
        for file in sorted(self.path.rglob("*")):
            name = file.relative_to(self.path)
            if file.suffix in _TELLING and file.is_file() and not any(p.startswith(".") for p in name.parts):
                whole.update(f"{name.as_posix()}\n{file_digest(file)}\n".encode())
        return whole.hexdigest()


def find_model(model: str, revision: str, environ: Mapping[str, str]) -> ModelFolder | None:
    """A path, or a hub's name for what its client has downloaded already. None: not on this machine."""
    path = Path(model)
    if path.is_dir():
        return ModelFolder(path)
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
