"""The stub engine as a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from dynbranch.stub_engine.engine import EXIT_BY_FAULT
from integration.stub_engine.conftest import HI


@asynccontextmanager
async def process(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dynbranch.cli.main", "stub-engine", "--port", "0", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        line = json.loads(await asyncio.wait_for(child.stdout.readline(), 60))
        assert line["service"] == "stub-engine"
        yield child, f"http://{line['address']}/v1/chat/completions"
    finally:
        if child.returncode is None:
            child.terminate()
        await child.communicate()


async def test_it_serves_what_its_files_say_and_ends_when_told(tmp_path: Path) -> None:
    script, faults = tmp_path / "script.jsonl", tmp_path / "faults.jsonl"
    script.write_text('{"reply": {"text": "from a file"}}\n')
    faults.write_text('{"kind": "status", "status": 503, "times": 1}\n')
    options = ("--script", str(script), "--faults", str(faults), "--preset", "h200-qwen3-32b")
    async with process(*options) as (child, url), aiohttp.ClientSession() as http:
        async with http.post(url, json=HI) as answer:
            assert answer.status == 503
        async with http.post(url, json=HI) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == "from a file"
        child.terminate()
        assert await asyncio.wait_for(child.wait(), 20) == 0


async def test_a_fault_ends_the_process(tmp_path: Path) -> None:
    faults = tmp_path / "faults.jsonl"
    faults.write_text('{"kind": "exit", "after_tokens": 1}\n')
    async with process("--faults", str(faults)) as (child, url), aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            async with http.post(url, json=HI) as answer:
                await answer.read()
        assert await asyncio.wait_for(child.wait(), 20) == EXIT_BY_FAULT
