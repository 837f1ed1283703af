"""A real full disk: writes are refused, hits and misses are served, and it goes on when there is room."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# A file system of its own, in a namespace of its own.
_MOUNTED = (
    'mount -t tmpfs -o size=32m tmpfs "$1" && head -c 16777216 /dev/zero > "$1/ballast" && '
    'exec "$2" "$3" "$1"'
)


def _may_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ("unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(folder))
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.promise("C1.full_disk")
def test_a_full_disk_refuses_writes_and_serves_on(tmp_path: Path) -> None:
    if not _may_mount(tmp_path):
        pytest.skip("no file system can be mounted here")
    program = Path(__file__).with_name("on_a_full_disk.py")
    done = subprocess.run(
        ("unshare", "-rm", "sh", "-c", _MOUNTED, "sh", str(tmp_path), sys.executable, str(program)),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "ok\n", done.stdout + done.stderr
