"""Wiring of the service, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynbranch.csl.binding import opener
from dynbranch.csl.config import CslSettings
from dynbranch.csl.fill_server import FILL_SERVICE, FillServicer
from dynbranch.csl.metrics import StoreCollector
from dynbranch.csl.rocks import DataDirectory
from dynbranch.csl.server import SERVICE, CslServicer
from dynbranch.csl.service import opened_shell
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.config import load_settings
from dynbranch.runtime.run import Started, run_service
from dynbranch.runtime.server import GrpcServer
from dynbranch.v1.csl_pb2_grpc import (
    add_CslServiceServicer_to_server,
    add_FillServiceServicer_to_server,
)


async def serve(started: Started) -> None:
    settings = load_settings(CslSettings, service="csl")
    clock = SystemClock()
    async with opened_shell(
        DataDirectory(settings.data_dir),
        limits=settings.limits(),
        sizes=settings.sizes(),
        clock=clock,
        new_id=new_id,
        open_database=opener(settings),
    ) as (shell, tasks):
        started.registry.register(StoreCollector(shell.stats_now, shell.library.counters, shell.flushes))
        services: list[tuple[Callable[[Any, Any], None], object, str]] = [
            (add_CslServiceServicer_to_server, CslServicer(shell), SERVICE),
            (add_FillServiceServicer_to_server, FillServicer(shell), FILL_SERVICE),
        ]
        server = GrpcServer(settings.listen, services, clock)
        started.ready(await server.start())
        try:
            await started.until_stopped(tasks)
        finally:
            await server.stop(settings.drain_s)


def main() -> None:
    run_service("csl", serve)


if __name__ == "__main__":
    main()
