"""What ``up`` says at its start of what will not work as a person may expect, and what to do about it.

None of it stops what can run.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynbranch.domain.ids import Instant
from dynbranch.rendering.watching import Rejected, TemplateFolder

_PROBE_TIMEOUT_S = 3.0


def template_notes(folder: Path) -> list[str]:
    """One for each file that can not be used, and one if there is none that can."""
    templates = TemplateFolder(folder)
    notes = [
        f"{change.reason}\n  This template is left out. Mend the file: it is read again while the stack "
        f"runs; 'dynbranch template check {change.file}' says whether it is right."
        for change in templates.poll(Instant(0.0))
        if isinstance(change, Rejected)
    ]
    if not templates.in_force:
        notes.append(
            f"{folder} holds no template (*.yaml) that can be used: nothing runs ahead of decisions. "
            "'dynbranch template learn' proposes one from recorded traffic."
        )
    return notes


def engine_problem(url: str, timeout_s: float = _PROBE_TIMEOUT_S) -> str:
    """Why nothing that speaks HTTP answers there; empty when something does."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/v1/models", timeout=timeout_s):
            return ""
    except urllib.error.HTTPError:
        # It may want a key, or know no such path; it is there.
        return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def engine_note(url: str, problem: str) -> str:
    return (
        f"No engine answers at {url}: {problem}.\n  Everything else starts, and requests are served as soon "
        "as it is there. Give the URL without /v1, as http://127.0.0.1:8000, and see that it listens there."
    )


def served_models(url: str) -> Sequence[Mapping[str, Any]]:
    """As a gateway tells them. Raises OSError."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=_PROBE_TIMEOUT_S) as response:
        return list(json.load(response)["data"])


def reuse_notes(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for model in models:
        if reason := model.get("not_reused_because"):
            yield (
                f"Nothing of {model['id']} is reused or runs ahead: {reason}.\n  Requests are served all "
                "the same. Vouch for what can not be told by starting again with "
                "DYNBRANCH_ENGINE_AGENT_FINGERPRINT_FACTS=chat_template=NAME,weights=NAME, and with "
                "new names whenever either changes."
            )
