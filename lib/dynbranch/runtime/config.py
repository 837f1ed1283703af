"""One typed configuration per service, read once: defaults, then a TOML file, then the environment.

``DYNBRANCH_CONFIG`` names a TOML file with one table per service. ``DYNBRANCH_<SERVICE>_<FIELD>`` beats it.
A list is written with commas in the environment. A name that no setting has is an error, never ignored.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

SERVICES = ("gateway", "controller", "csl", "engine_agent")

SHARED = (
    "DYNBRANCH_API_KEY",
    "DYNBRANCH_CONFIG",
    "DYNBRANCH_ENABLED",
    "DYNBRANCH_LOG_LEVEL",
    "DYNBRANCH_METRICS_HOST",
    "DYNBRANCH_METRICS_PORT",
    "DYNBRANCH_URL",
)
"""Variables that belong to no single service."""

_PREFIXES = tuple(f"DYNBRANCH_{service.upper()}_" for service in (*SERVICES, "passages"))
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT\w*$|_PORT_\d+_(TCP|UDP)_\w+$")
"""With ``…_PORT=tcp://…``, what Kubernetes puts into every container for each service of the namespace."""

S = TypeVar("S", bound=BaseSettings)


class ConfigError(Exception):
    """A setting that can not be used. The message names it and says what would do."""


def load_settings(model: type[S], *, service: str, environ: Mapping[str, str] | None = None) -> S:
    """Read the settings of ``service``. Raises ConfigError.

    A field with a ``validation_alias`` is read from the variable of that very name (``DYNBRANCH_ENABLED``).
    """
    env = os.environ if environ is None else environ
    values = _from_toml(model, service, env.get("DYNBRANCH_CONFIG", ""))
    values.update(_from_environment(model, service, env))
    try:
        return _only_given(model)(**values)
    except ValidationError as error:
        raise ConfigError(
            "; ".join(_complaint(model, service, e["loc"], e["msg"]) for e in error.errors())
        ) from None


def variable(model: type[BaseSettings], service: str, field: str) -> str:
    """The environment variable that sets ``field``."""
    alias = _alias(model.model_fields[field])
    return alias or f"DYNBRANCH_{service.upper()}_{field.upper()}"


def _from_environment(model: type[BaseSettings], service: str, env: Mapping[str, str]) -> dict[str, Any]:
    known = {variable(model, service, field): field for field in model.model_fields}
    for name in env:
        if name.startswith("DYNBRANCH_") and name not in known and not _is_anothers(name, env[name], service):
            raise ConfigError(f"unknown variable {name}{_nearest(name, (*known, *SHARED))}")
    return {
        _key(model, field): _split(model.model_fields[field], env[name])
        for name, field in known.items()
        if name in env
    }


def _is_anothers(name: str, value: str, service: str) -> bool:
    """Whether a variable that this service does not have is somebody's all the same."""
    if name in SHARED or _SERVICE_LINK.search(name) or value.startswith(("tcp://", "udp://")):
        return True
    return name.startswith(_PREFIXES) and not name.startswith(f"DYNBRANCH_{service.upper()}_")


def _from_toml(model: type[BaseSettings], service: str, path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"DYNBRANCH_CONFIG: {path}: {error}") from error
    for table in document:
        if table not in SERVICES and table != service:
            raise ConfigError(f"{path}: unknown table [{table}]{_nearest(table, SERVICES)}")
    values = document.get(service, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {service} must be a table")
    for key in values:
        if key not in model.model_fields:
            raise ConfigError(f"{path}: unknown key {key} in [{service}]{_nearest(key, model.model_fields)}")
    return {_key(model, key): value for key, value in values.items()}


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"; the nearest known one is {near[0]}" if near else "; there are none"


def _alias(field: FieldInfo) -> str | None:
    return field.validation_alias if isinstance(field.validation_alias, str) else None


def _key(model: type[BaseSettings], field: str) -> str:
    return _alias(model.model_fields[field]) or field


def _split(field: FieldInfo, text: str) -> object:
    if not _is_list(field.annotation):
        return text
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_list(annotation: object) -> bool:
    kinds = (list, tuple, set, frozenset)
    if annotation in kinds or get_origin(annotation) in kinds:
        return True
    return any(_is_list(part) for part in get_args(annotation))


def _only_given(model: type[S]) -> type[S]:
    """``model`` without its own look at the environment: everything was read above, strictly."""

    def sources(
        cls: type[BaseSettings],
        /,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        **others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    body = {"__module__": model.__module__, "settings_customise_sources": classmethod(sources)}
    return type(model.__name__, (model,), body)


def _complaint(model: type[BaseSettings], service: str, where: tuple[int | str, ...], message: str) -> str:
    field = str(where[0]) if where else ""
    name = variable(model, service, field) if field in model.model_fields else field
    return f"{name}: {message}" if name else message
