"""What is not installed is said before anything starts, with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from dynbranch.cli import weights_command
from dynbranch.cli.failures import CliFailure
from dynbranch.cli.installed import EXTRAS, WEIGHTS, check_stack, extra_of
from dynbranch.cli.main import app
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[3]


def test_every_extra_that_is_named_exists() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"all", "dev"}


def test_the_weights_are_the_locked_ones() -> None:
    assert weights_command.LOCK.read_text() in (ROOT / "requirements.lock").read_text()


def test_a_module_belongs_to_the_extra_of_the_command_that_wants_it() -> None:
    assert extra_of("aiohttp.client") == "gateway"
    assert extra_of("aiohttp", "engine-agent") == "engine-agent"
    assert extra_of("opentelemetry.proto.trace") == "demo"
    assert extra_of("opentelemetry.sdk") == "telemetry"
    assert extra_of("dynbranch.nothing") == "" and extra_of("open") == ""


@pytest.mark.parametrize(
    ("absent", "says"),
    [("rocksdict", "'csl'"), ("xllamacpp", "--engine-url"), (WEIGHTS, "dynbranch weights")],
)
def test_a_stack_is_checked_before_it_starts(absent: str, says: str) -> None:
    with pytest.raises(CliFailure) as failure:
        check_stack(embedded=True, find=lambda module: None if module == absent else find_spec("json"))
    assert says in f"{failure.value.message} {failure.value.advice}"


def test_before_an_engine_of_ones_own_no_weights_are_needed() -> None:
    check_stack(embedded=False, find=lambda m: None if m in (WEIGHTS, "xllamacpp") else m)


@pytest.mark.parametrize(
    ("command", "absent", "extra"),
    [
        (["up", "--port", "0"], "httptools", "all"),
        (["demo"], "openai", "all"),
        (["gateway"], "httptools", "gateway"),
        (["engine-agent"], "aiohttp", "engine-agent"),
        (["csl", "check", "."], "rocksdict", "csl"),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, command: list[str], absent: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{absent!r}] = None; sys.argv[1:] = {command!r}\n"
        "from dynbranch.cli.main import app; app()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert absent in done.stderr and f"./dynbranch[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_the_version_is_said() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0 and shown.output.startswith("dynbranch ")
