"""Follows each Dockerfile without Docker: COPY and RUN in a folder, then the ENTRYPOINT. ``make image-check``

It installs the locked packages from the package index, which the test suite does not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dynbranch.runtime.config import SERVICES
from unit.deploy.manifests import ROOT
from unit.deploy.test_images import instructions

BUILD_S, START_S = 600, 60


class Builder:
    """What stands for the image: ``/source``, ``/wheels`` and ``/opt`` are folders below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.source = root / "source"
        self.source.mkdir()
        subprocess.run((sys.executable, "-m", "venv", root / "base"), check=True, timeout=BUILD_S)

    @property
    def environment(self) -> dict[str, str]:
        places = (self._root / "opt/dynbranch/bin", self._root / "base/bin")
        return {**os.environ, "PATH": ":".join((*map(str, places), os.environ["PATH"])), "PYTHONPATH": ""}

    def copy(self, words: list[str]) -> None:
        *sources, target = words
        for one in sources:
            place = self.source / (Path(one).name if target == "./" else target)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / one).is_dir():
                shutil.copytree(
                    ROOT / one, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
                )
            else:
                shutil.copy(ROOT / one, place)

    def run(self, words: list[str]) -> None:
        line = " ".join(words)
        for name in ("opt", "wheels"):
            line = line.replace(f" /{name}", f" {self._root}/{name}")
        environment = {**self.environment, "PATH": f"{self._root}/base/bin:{os.environ['PATH']}"}
        done = subprocess.run(
            ("sh", "-ec", line),
            cwd=self.source,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.timeout(BUILD_S)
def test_the_image_can_be_built_and_its_service_starts_and_ends(service: str, tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    steps = instructions(service)
    stages = [number for number, (name, _) in enumerate(steps) if name == "FROM"]
    for name, words in steps[stages[0] : stages[1]]:
        if name == "COPY":
            builder.copy(words)
        elif name == "RUN":
            builder.run(words)
    shutil.rmtree(builder.source)
    entry = json.loads(" ".join(dict(steps)["ENTRYPOINT"]))
    prefix = f"DYNBRANCH_{service.upper()}"
    settings = {f"{prefix}_LISTEN": "127.0.0.1:0"}
    if service == "engine_agent":
        settings |= {f"{prefix}_KIND": "openai", f"{prefix}_ENGINE_URL": "http://127.0.0.1:9"}
    environment = {**builder.environment, **settings}
    with subprocess.Popen(entry, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["service"] == service
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_S) == 0
        finally:
            process.kill()
    subprocess.run(
        ("dynbranch", "--help"), env=builder.environment, check=True, capture_output=True, timeout=60
    )


@pytest.mark.timeout(BUILD_S)
def test_every_locked_package_has_a_wheel_for_arm64(service: str, tmp_path: Path) -> None:
    platforms = [f"--platform=manylinux{kind}_aarch64" for kind in ("2014", "_2_17", "_2_26", "_2_28")]
    lock = ROOT / "services" / service / "requirements.lock"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += [
        "--only-binary=:all:",
        "--python-version=3.11",
        *platforms,
        "-r",
        str(lock),
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode == 0, done.stderr
