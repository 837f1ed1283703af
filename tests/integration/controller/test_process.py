"""The controller as its own process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE

from dynbranch.clients.controller import GrpcController
from dynbranch.domain.events import ArrivalSeen, EventBatch
from dynbranch.domain.ids import DemandId, UnixMs
from dynbranch.domain.reuse import Identity


def clean(**environ: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DYNBRANCH_", "OTEL_"))}
    return {**kept, **environ}


async def test_it_serves_until_it_is_told_to_stop() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynbranch.controller", env=clean(), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        line = json.loads(await process.stdout.readline())
        assert line["service"] == "controller"
        client = GrpcController(line["address"])
        event = ArrivalSeen(UnixMs(1), DemandId(b"d"), Identity(), "chat", None, streaming=False)
        assert await client.report_events(EventBatch("g", 0, (event,)), timeout_s=30) == 1
        assert (await client.summary(timeout_s=30)).arrivals == 1
        await client.close()
        process.terminate()
        _, complaints = await process.communicate()
        assert (process.returncode, complaints) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_an_unknown_setting_is_an_error_that_names_the_nearest() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dynbranch.controller",
        env=clean(DYNBRANCH_CONTROLLER_LISTN="127.0.0.1:0"),
        stdout=PIPE,
        stderr=PIPE,
    )
    _, complaint = await process.communicate()
    assert process.returncode == 2
    assert b"the nearest known one is DYNBRANCH_CONTROLLER_LISTEN" in complaint
