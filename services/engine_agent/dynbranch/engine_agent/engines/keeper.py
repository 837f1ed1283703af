"""``python keeper.py PROGRAM …``: runs a program, and all that it starts, while its own input stays open.

An engine is many processes, and some outlive the one that was started first. All of them are in one process
group here, which ends as a whole: when the first one ends, when the agent closes this input, and when the
agent is gone, however that happened. Only the standard library: this runs beside every engine.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 8.0
_PR_SET_PDEATHSIG = 1


def _die_with_keeper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell_group(leader: int, what: int) -> None:
    # The leader is not waited for yet, so its number can not belong to anybody else.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, what)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_keeper,
    )
    print(f'{{"engine_pid": {engine.pid}}}', flush=True)
    over = threading.Event()

    def end() -> None:
        _tell_group(engine.pid, signal.SIGTERM)
        if not over.wait(GRACE_S):
            _tell_group(engine.pid, signal.SIGKILL)

    def watch_input() -> None:
        sys.stdin.buffer.read()
        end()

    threading.Thread(target=watch_input, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end, daemon=True).start())
    while True:
        try:
            os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
            break
        except InterruptedError:
            continue
    over.set()
    _tell_group(engine.pid, signal.SIGKILL)
    return engine.wait()


if __name__ == "__main__":
    status = main()
    # A signal's number is kept as shells do.
    os._exit(status if status >= 0 else 128 - status)
