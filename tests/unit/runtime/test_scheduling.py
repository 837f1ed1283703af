"""What the kernel is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, threading
from dynbranch.runtime.scheduling import take_turns
take_turns()
later = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))
later.start()
later.join()
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has it")
def test_a_process_and_its_threads_take_turns() -> None:
    said = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert int(said.stdout) == os.SCHED_BATCH


def test_where_it_is_forbidden_the_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from dynbranch.runtime import scheduling

    def forbidden(pid: int, policy: int, parameters: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(scheduling.os, "sched_setscheduler", forbidden, raising=False)
    scheduling.take_turns()
