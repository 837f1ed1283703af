"""The controller as its own process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from contextlib import aclosing
from importlib.resources import files
from pathlib import Path

import pytest
from dynbranch.clients.controller import GrpcController
from dynbranch.controller.core.pricing.snapshot import VERSION
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


async def test_it_tells_its_templates_and_runs_without_its_peers(tmp_path: Path) -> None:
    for template in files("dynbranch.demo").joinpath("templates").iterdir():
        put(tmp_path / template.name, template.read_text())
    put(tmp_path / "broken.yaml", "workflow_type: [")
    environ = clean(
        DYNBRANCH_CONTROLLER_TEMPLATES=str(tmp_path),
        DYNBRANCH_CONTROLLER_CSL="127.0.0.1:1",
        DYNBRANCH_CONTROLLER_AGENTS="127.0.0.1:1,127.0.0.1:2",
        DYNBRANCH_CONTROLLER_POLICY="always",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynbranch.controller", env=environ, stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        client = GrpcController(json.loads(await process.stdout.readline())["address"])
        async with aclosing(client.watch_templates()) as watch:
            told = await anext(watch)
        names = [one.workflow_type_id for one in told.templates]
        assert names == ["menus", "react", "routing-chain", "sub-agents"]
        assert await client.list_branches(workflow_id="", at_most=9, timeout_s=30) == ()
        await client.close()
        process.terminate()
        _, complaints = await process.communicate()
        assert process.returncode == 0 and b"broken.yaml" in complaints
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_folder_of_templates_that_is_not_there_is_an_error() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dynbranch.controller",
        env=clean(DYNBRANCH_CONTROLLER_TEMPLATES="/nowhere"),
        stdout=PIPE,
        stderr=PIPE,
    )
    _, complaint = await process.communicate()
    assert process.returncode == 2
    assert b"DYNBRANCH_CONTROLLER_TEMPLATES: /nowhere is not a folder" in complaint


async def served(**environ: str) -> tuple[int | None, bytes]:
    """From its start until it is told to stop: how it ended, and what it said of trouble."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynbranch.controller", env=clean(**environ), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        if await process.stdout.readline():
            process.terminate()
        _, complaints = await process.communicate()
        return process.returncode, complaints
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.promise("C3.restart")
async def test_what_admission_has_learned_is_written_when_it_stops_and_read_when_it_starts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "learned.json"
    environ = {"DYNBRANCH_CONTROLLER_CSL": "127.0.0.1:1", "DYNBRANCH_CONTROLLER_LEARNED": str(path)}
    assert (await served(**environ))[0] == 0
    written = json.loads(path.read_text())
    assert written["version"] == VERSION
    put(path, json.dumps({**written, "stages": [["routing", "work", 900.0, 1.0, 50.0, 1.0]]}))
    assert (await served(**environ))[0] == 0
    assert json.loads(path.read_text())["stages"] == [["routing", "work", 900.0, 1.0, 50.0, 1.0]]
    put(path, '{"version": 99}')
    ended, complaints = await served(**environ)
    assert ended == 0 and b"version 99" in complaints and b"begins anew" in complaints
    assert json.loads((tmp_path / "learned.json.unreadable").read_text()) == {"version": 99}


async def test_a_price_curve_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    put(tmp_path / "curve.json", "[]")
    ended, complaints = await served(
        DYNBRANCH_CONTROLLER_CSL="127.0.0.1:1",
        DYNBRANCH_CONTROLLER_PRICE_CURVE=str(tmp_path / "curve.json"),
    )
    assert ended == 2 and b"DYNBRANCH_CONTROLLER_PRICE_CURVE" in complaints and b"no object" in complaints


def put(path: Path, text: str) -> None:
    path.write_text(text)
