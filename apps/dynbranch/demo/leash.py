"""``python leash.py PARENT_PID PROGRAM …`` becomes the program, which is told to stop when the parent dies.

Linux keeps the request across the exec. Elsewhere the program runs without it. Only the standard library, and
little of it: this runs before every service.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the request was made.
        if os.getppid() != parent:
            sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
