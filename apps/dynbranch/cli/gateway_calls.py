"""Calls to a gateway's own endpoints, and what their failures mean to a person."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from dynbranch.cli.failures import CliFailure

_TIMEOUT_S = 60.0


def ask(gateway: str, path: str, body: bytes | None = None, environ: Mapping[str, str] = os.environ) -> Any:
    """GET, or POST when there is a body; the JSON of the answer. Raises CliFailure.

    ``DYNBRANCH_API_KEY`` is the key that a harness would send: a gateway may know tenants by it, and what it
    forwards is part of a request's name.
    """
    headers = {"content-type": "application/json", "accept": "application/json"}
    if key := environ.get("DYNBRANCH_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(gateway + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise CliFailure(_message(error)) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise CliFailure(
            f"{gateway} does not answer: {reason}",
            "Is the stack up? 'dynbranch up' starts one; --gateway names another.",
        ) from None
    except ValueError:
        raise CliFailure(f"{gateway}{path} did not answer with JSON: is it a DynBranch gateway?") from None


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code}: {text[:300]}"
