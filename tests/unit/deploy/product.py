"""What the code has: its version, its settings, its commands, its probes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module

import typer
from dynbranch.cli.main import app
from dynbranch.cli.settings_command import settings_of
from dynbranch.runtime.config import SERVICES, SHARED, ConfigError, load_settings
from dynbranch.runtime.server import LIVENESS
from opentelemetry.sdk import environment_variables
from pydantic_settings import BaseSettings
from unit.deploy.manifests import ROOT

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGES = {f"dynbranch-{service.replace('_', '-')}": service for service in SERVICES}
HTTP_PATHS = ("/healthz", "/readyz", "/metrics")
HEALTH_NAMES = (
    "",
    LIVENESS,
    "dynbranch.v1.ControllerService",
    "dynbranch.v1.CslService",
    "dynbranch.v1.EngineAgentService",
)
PEERS: Mapping[str, tuple[str, ...]] = {
    "gateway": ("csl", "controller", "agents"),
    "controller": ("csl", "agents"),
    "engine_agent": ("csl",),
}
"""The settings that are addresses of other services."""

_TRACING = frozenset(v for v in vars(environment_variables).values() if isinstance(v, str))
_UsageError = typer.BadParameter.__mro__[1]


def model_of(service: str) -> type[BaseSettings]:
    kinds = vars(import_module(f"dynbranch.{service}.config")).values()
    (model,) = [
        k for k in kinds if isinstance(k, type) and issubclass(k, BaseSettings) and k is not BaseSettings
    ]
    return model


def settings(service: str, values: Mapping[str, str]) -> BaseSettings:
    """Raises ConfigError."""
    return load_settings(model_of(service), service=service, environ=values)


def refusal(service: str, values: Mapping[str, str]) -> str | None:
    """Why the service would not start with this environment."""
    try:
        settings(service, values)
    except ConfigError as error:
        return str(error)
    return None


def reads(service: str, variable: str) -> bool:
    """Whether the service looks at that variable."""
    own = {one["variable"] for one in settings_of(service)}
    return variable in own or variable in SHARED or variable in _TRACING


def drain_s(service: str, values: Mapping[str, str]) -> float:
    """How long the service may take to end."""
    one = settings(service, values)
    return float(getattr(one, "drain_s", getattr(one, "stop_grace_s", 0)))


def command_refusal(words: Sequence[str]) -> str | None:
    """Why the command line can not be run in an image; None when it can."""
    if tuple(words[:2]) == ("python", "-m"):
        known = words[2:] and words[2] in [f"dynbranch.{service}" for service in SERVICES]
        return None if known and len(words) == 3 else "starts no service"
    if words[0] != "dynbranch":
        return f"{words[0]} is in no image"
    command, name, rest, context = typer.main.get_command(app), "dynbranch", list(words[1:]), None
    try:
        while True:
            context = command.make_context(name, rest, parent=context)
            if not hasattr(command, "resolve_command"):
                return None
            left = [*context._protected_args, *context.args]
            if not left:
                return None if command.invoke_without_command else "is no whole command"
            name, command, rest = command.resolve_command(context, left)
    except _UsageError as error:
        return str(error.format_message()) or "is no whole command"
