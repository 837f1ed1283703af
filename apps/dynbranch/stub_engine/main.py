"""The stub engine as a process of its own."""

from __future__ import annotations

import gc
from typing import NoReturn

from dynbranch.runtime.run import Started, run_service
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.settings import StubSettings


def run(settings: StubSettings) -> NoReturn:
    """Serves until it is told to stop. Prints the ready line of a service."""

    async def serve(started: Started) -> None:
        # Requests leave no cycles behind: looking for them again and again would cost a tenth of the time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        async with StubEngine(settings, ends_process=True) as engine:
            started.ready(f"{settings.host}:{engine.port}")
            await started.until_stopped()

    run_service("stub-engine", serve)
