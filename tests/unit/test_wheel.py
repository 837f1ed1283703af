"""What users install: every portion of the namespace with its types and data, nothing that hides another."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WANTED = (
    "dynbranch/v1/csl_pb2_grpc.py",
    "dynbranch/client.py",
    "dynbranch/py.typed",
    "dynbranch/domain/reuse.py",
    "dynbranch/naming/py.typed",
    "dynbranch/gateway/core/life.py",
    "dynbranch/csl/rocks.py",
    "dynbranch/engine_agent/engines/embedded_server.py",
    "dynbranch/controller/main.py",
    "dynbranch/cli/main.py",
    "dynbranch/cli/weights.lock",
    "dynbranch/bench/names.py",
    "dynbranch/demo/tools.yaml",
    "dynbranch/demo/data/NOTICE.md",
    "dynbranch/demo/data/passages.jsonl",
    "dynbranch/demo/data/sgd/NOTICE.md",
    "dynbranch/demo/templates/menus.yaml",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_every_portion_is_there(wheel: zipfile.ZipFile) -> None:
    assert not set(WANTED) - set(wheel.namelist())


def test_nothing_hides_the_namespace(wheel: zipfile.ZipFile) -> None:
    assert not [name for name in wheel.namelist() if name.endswith("__init__.py")]


def test_it_runs_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import dynbranch.cli.main, dynbranch.domain.ids as ids; print(ids.__file__)"
    # -S: without site-packages there is no editable checkout; its other packages are put back by path.
    paths = [str(tmp_path), *(p for p in sys.path if p.endswith("site-packages"))]
    done = subprocess.run(
        (sys.executable, "-S", "-c", code),
        env={"PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(tmp_path))
