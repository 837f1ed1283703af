"""The supervisor, with tiny processes in the place of services."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dynbranch.demo.processes import ProcessDied, Processes, ProcessSpec, StartTimedOut, free_ports

READY = 'import json; print(json.dumps({"service": "x", "address": "127.0.0.1:1"}), flush=True)\n'
STAY = "import signal, sys, time\n"
POLITE = STAY + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + READY + "time.sleep(60)\n"
STUBBORN = STAY + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "time.sleep(60)\n"
BROKEN = "import sys; print('no model here', file=sys.stderr); sys.exit(3)\n"


def spec(name: str, program: str) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", program), dict(os.environ))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie that init has not yet reaped is as good as gone.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_gone(pid: int) -> bool:
    for _ in range(1000):
        if gone(pid):
            return True
        time.sleep(0.01)
    return False


def test_ready_lines_give_addresses_and_stop_ends_everything(tmp_path: Path) -> None:
    with Processes([spec("a", POLITE), spec("b", POLITE)], tmp_path) as processes:
        processes.wait_for_lines(timeout_s=30)
        assert processes.addresses() == {"a": "127.0.0.1:1", "b": "127.0.0.1:1"}
        pids = processes.pids
        processes.check()
    assert all(gone(pid) for pid in pids.values())


def test_one_that_was_killed_starts_again(tmp_path: Path) -> None:
    with Processes([spec("a", POLITE), spec("b", POLITE)], tmp_path) as processes:
        processes.wait_for_lines(timeout_s=30)
        before = processes.pids
        processes.send("b", signal.SIGKILL)
        processes.start_again("b")
        processes.wait_for_lines(timeout_s=30)
        processes.check()
        assert processes.pids["a"] == before["a"] and processes.pids["b"] != before["b"]
    assert gone(before["b"])


def test_a_process_that_dies_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        Processes([spec("fine", POLITE), spec("engine", BROKEN)], tmp_path) as processes,
        pytest.raises(ProcessDied, match=r"engine ended with exit status 3[\s\S]*no model here") as caught,
    ):
        processes.wait_for_lines(timeout_s=30)
    assert caught.value.name == "engine"


def test_a_process_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    processes = Processes([spec("stubborn", STUBBORN)], tmp_path, stop_deadline_s=0.2)
    processes.start()
    processes.wait_for_lines(timeout_s=30)
    (pid,) = processes.pids.values()
    processes.stop()
    assert gone(pid)


def test_what_is_missing_is_told_and_named_when_time_is_up(tmp_path: Path) -> None:
    told: list[str] = []
    with (
        Processes([spec("a", POLITE)], tmp_path) as processes,
        pytest.raises(StartTimedOut, match="the moon"),
    ):
        processes.wait_until(lambda: "the moon", timeout_s=0.05, tell=told.append)
    assert set(told) == {"the moon"}


def test_processes_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys, time\n"
        "from dynbranch.demo.processes import Processes, ProcessSpec\n"
        f"spec = ProcessSpec('a', (sys.executable, '-c', {POLITE!r}), dict(os.environ))\n"
        f"processes = Processes([spec], pathlib.Path({str(tmp_path)!r}))\n"
        "processes.start()\n"
        "processes.wait_for_lines(timeout_s=30)\n"
        "print(processes.pids['a'], flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    assert wait_gone(pid)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
