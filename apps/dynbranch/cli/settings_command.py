"""``settings``: every setting of a service with its variable, default and meaning."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from dynbranch.cli.failures import CliFailure
from dynbranch.runtime.config import SERVICES, variable
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def settings_of(service: str) -> list[dict[str, str]]:
    """Raises CliFailure for what is no service."""
    name = service.replace("-", "_")
    if name not in SERVICES:
        raise CliFailure(
            f"there is no service {service}", f"The services are {', '.join(SERVICES).replace('_', '-')}."
        )
    module = import_module(f"dynbranch.{name}.config")
    kinds = [kind for kind in vars(module).values() if _is_settings(kind)]
    (model,) = kinds
    return [
        {
            "variable": variable(model, name, field),
            "default": "" if info.is_required() else _shown(info.get_default(call_default_factory=True)),
            "meaning": info.description or "",
        }
        for field, info in model.model_fields.items()
    ]


def show_settings(service: str, *, as_json: bool) -> None:
    settings = settings_of(service)
    if as_json:
        print(json.dumps(settings, indent=1))
        return
    table = Table("variable", "default", "meaning", title=f"Settings of the {service}")
    table.columns[0].no_wrap = True
    for one in settings:
        table.add_row(one["variable"], escape(one["default"]), escape(one["meaning"]))
    Console().print(table)


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseSettings) and kind is not BaseSettings


def _shown(default: Any) -> str:
    if default is None:
        return ""
    if isinstance(default, list | tuple):
        return ",".join(map(str, default))
    return str(getattr(default, "value", default))
