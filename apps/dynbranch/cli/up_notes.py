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
from urllib.parse import urlsplit

from dynbranch.cli.failures import CliFailure
from dynbranch.demo.stack import STATE_FILE
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


def check_engine_url(url: str) -> None:
    """Raises CliFailure where nothing could be reached by it, before anything starts."""
    advice = "Give the engine's address without a path, as --engine-url http://127.0.0.1:8000."
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        if "://" not in url and url.strip("/"):
            advice = f"Did you mean http://{url}?"
        raise CliFailure(f"--engine-url: {url!r} is not the base URL of an engine", advice)


def engine_problem(url: str, timeout_s: float = _PROBE_TIMEOUT_S) -> str:
    """Why nothing that speaks HTTP answers there; empty when something does."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/').removesuffix('/v1')}/v1/models", timeout=timeout_s):
            return ""
    except urllib.error.HTTPError:
        # It may want a key, or know no such path; it is there.
        return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def engine_note(url: str, problem: str) -> str:
    return (
        f"No engine answers at {url}: {problem}.\n  Everything else starts, and requests are served as soon "
        "as it is there. See that it listens at that host and port, as at http://127.0.0.1:8000."
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


def how_to_use(
    url: str, model: str, logs: Path, *, passages: str = "", traces: Path | None = None
) -> list[str]:
    """Lines for a person. No ``model``: none is served so far. ``passages``: of the demo's own tools, where
    they are of use."""
    lines = [f"DynBranch is up: {url}", ""]
    if model:
        body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": "Say hello."}]}
        lines += [
            f'  Python   OpenAI(base_url="{url}/v1", api_key="any"), model "{model}", temperature=0',
            f'           Anthropic(base_url="{url}", api_key="any"), extra_body={{"temperature": 0}}',
            "           Only greedy requests are reused: without a temperature most engines draw at random.",
            f"  Shell    curl -i {url}/v1/chat/completions -d '{json.dumps(body)}'",
            "           twice: the second answer says x-dynbranch-outcome: hit",
        ]
    else:
        lines.append(
            f"  Models   curl {url}/v1/models   (none so far: it lists them as soon as an engine is there)"
        )
    if passages:
        lines += [
            f'  Tools    curl -i {url}/dynbranch/v1/tools/search -d \'{{"query": "river", "k": 2}}\'',
            f'  Write    curl -X PUT {passages}/passages/ID -d \'{{"text": "…"}}\'',
        ]
    lines.append(f"  Look     DYNBRANCH_URL={url} dynbranch stats (or: inspect branch), in another terminal")
    lines.append(f"  Metrics  curl {url}/metrics; those of the other services: {logs.parent / STATE_FILE}")
    lines.append(f"  Logs     {logs}")
    if traces:
        lines.append(f"  Traces   {traces}")
    return [*lines, "", "Ctrl-C stops it."]
