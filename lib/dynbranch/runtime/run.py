"""The life of a service process: set up, tell that it is ready, stop when told, flush."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import uvloop
from dynbranch.domain.errors import DomainError
from dynbranch.runtime import telemetry
from dynbranch.runtime.config import ConfigError
from dynbranch.runtime.logs import configure_logging
from dynbranch.runtime.tasks import Tasks
from prometheus_client import REGISTRY, CollectorRegistry, start_http_server

_log = logging.getLogger(__name__)

EXIT_CRASH = 1

_GARBAGE_THRESHOLDS = (50_000, 20, 100)
"""Objects made and not freed before a look at the young, and how many looks before one at the older ones."""

EXIT_CONFIG = 2


class Started:
    """What a service's ``main`` gets from the process around it.

    A typical main starts what it needs, calls ``ready``, awaits ``until_stopped`` and then drains.
    """

    def __init__(self, service: str, registry: CollectorRegistry = REGISTRY) -> None:
        self.service = service
        self.registry = registry
        """Where the service registers its Prometheus metrics."""
        self._stop = asyncio.Event()
        self.was_ready = False

    def ready(self, address: str) -> None:
        """Print the ready line, one JSON object on stdout, for whoever started the process."""
        self.was_ready = True
        _leave_alone_what_stays()
        print(json.dumps({"service": self.service, "address": address}), flush=True)

    def request_stop(self) -> None:
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def until_stopped(self, *owners: Tasks) -> None:
        """Return when the process is told to stop; before that, raise the first crash of an owner's task."""
        waits = [asyncio.ensure_future(self._stop.wait())]
        crashes = [asyncio.ensure_future(owner.crashed) for owner in owners]
        try:
            done, _ = await asyncio.wait([*waits, *crashes], return_when=asyncio.FIRST_COMPLETED)
            for crash in done.intersection(crashes):
                crash.result()
        finally:
            for wait in (*waits, *crashes):
                wait.cancel()
            await asyncio.gather(*waits, *crashes, return_exceptions=True)


def run_service(name: str, main: Callable[[Started], Awaitable[None]]) -> NoReturn:
    """Run ``main`` and exit: 0 when it was told to stop, 1 after a crash, 2 for a wrong setting.

    What keeps a service from starting is told in one line; a crash later on keeps its traceback.
    """
    # gRPC's core writes lines of its own form to stderr; below an error they say nothing that we do not.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    code = 0
    started = Started(name)
    try:
        configure_logging(name)
        uvloop.run(_supervise(started, main))
    except (OSError, DomainError) as error:
        if started.was_ready:
            raise
        print(f"{name} can not start: {error}", file=sys.stderr)
        code = EXIT_CRASH
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        code = EXIT_CONFIG
    except (KeyboardInterrupt, asyncio.CancelledError):
        _log.warning("stopped before the drain was over")
        code = EXIT_CRASH
    sys.exit(code)


def _leave_alone_what_stays() -> None:
    """The garbage collector looks at a service's modules no more, and less often at the rest: a full look at
    everything that was imported holds the event loop for tens of milliseconds, again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


async def _supervise(started: Started, main: Callable[[Started], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    job = asyncio.ensure_future(main(started))

    def stop() -> None:
        # The second signal is a person who does not want to wait for the drain.
        if started.stopping:
            job.cancel()
        started.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    telemetry.configure(started.service)
    _serve_metrics(started.registry)
    try:
        await job
    finally:
        await asyncio.to_thread(telemetry.shutdown)


def _serve_metrics(registry: CollectorRegistry) -> None:
    text = os.environ.get("DYNBRANCH_METRICS_PORT", "0")
    if not text.isdigit():
        raise ConfigError(f"DYNBRANCH_METRICS_PORT: {text!r} is not a port; 0 is off")
    if int(text):
        start_http_server(int(text), os.environ.get("DYNBRANCH_METRICS_HOST", "127.0.0.1"), registry)
