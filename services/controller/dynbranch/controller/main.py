"""Wiring of the controller service."""

from __future__ import annotations

from typing import NoReturn

from dynbranch.controller.config import ControllerSettings
from dynbranch.controller.core.journal import Journal
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.controller.server import service
from dynbranch.controller.shell import ControllerShell
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.config import load_settings
from dynbranch.runtime.run import Started, run_service
from dynbranch.runtime.server import GrpcServer


async def main(started: Started) -> None:
    settings = load_settings(ControllerSettings, service="controller")
    clock = SystemClock()
    shell = ControllerShell(Journal(settings.limits()), clock, ControllerMetrics(started.registry))
    server = GrpcServer(settings.listen, [service(shell)], clock)
    started.ready(await server.start())
    await started.until_stopped()
    await server.stop(settings.drain_s)


def run() -> NoReturn:
    run_service("controller", main)
