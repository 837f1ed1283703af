"""How the kernel shares cores among processes that hand one another messages, and how many there are."""

from __future__ import annotations

import logging
import os

_log = logging.getLogger(__name__)


def usable_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def take_turns() -> None:
    """From now on, a message that wakes this process does not interrupt whoever runs on its core
    (SCHED_BATCH, sched(7)).

    Who sent the message is most often that one, and has more to send: so messages are handled several at a
    time. On a core that is free nothing changes. Threads and processes that begin later take it over; call it
    first. Where the system has no such thing, or forbids it, nothing happens.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as refused:
        _log.info("the system's own scheduling stays: %s", refused)
