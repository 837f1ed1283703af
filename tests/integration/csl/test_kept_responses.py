"""Kept responses in the real store: they outlive its process, and so does their deletion."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from dynbranch.clients.csl import GrpcCsl
from dynbranch.gateway.core.breaker import BreakerPolicy
from dynbranch.gateway.core.kept_response import KeptResponse, Owner
from dynbranch.gateway.csl_gate import CslGate
from dynbranch.gateway.kept_responses import KeptResponses
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock

StartService = Callable[..., AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]]

ME, YOU = Owner("t", "Bearer me"), Owner("t", "Bearer you")
KEPT = KeptResponse(b"[]", b'{"input":"hi"}', b'{"output":[]}')
PATIENT_S = 20.0


@asynccontextmanager
async def kept_at(address: str) -> AsyncIterator[KeptResponses]:
    csl = GrpcCsl(address)
    policy = BreakerPolicy(bad_calls_to_open=100, open_s=1.0, slow_s=PATIENT_S)
    gate = CslGate(csl, budget_s=PATIENT_S, policy=policy, clock=SystemClock())
    try:
        yield KeptResponses(gate, csl, budget_s=PATIENT_S, write_timeout_s=PATIENT_S, new_id=new_id)
    finally:
        await csl.close()


@pytest.mark.promise("H.kept_responses")
async def test_kept_and_deleted_responses_survive_kill_9(tmp_path: Path, service: StartService) -> None:
    async with service(tmp_path) as (process, address):
        async with kept_at(address) as kept:
            assert await kept.keep(ME, "resp_1", KEPT) and await kept.keep(ME, "resp_2", KEPT)
            assert await kept.forget(ME, "resp_2")
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with service(tmp_path) as (_, address), kept_at(address) as kept:
        assert await kept.find(ME, "resp_1") == KEPT
        assert await kept.find(ME, "resp_2") is None and not await kept.forget(ME, "resp_2")
        assert await kept.find(YOU, "resp_1") is None and not await kept.forget(YOU, "resp_1")


@pytest.mark.promise("H.kept_responses")
async def test_responses_are_kept_while_others_are_deleted(tmp_path: Path, service: StartService) -> None:
    async with service(tmp_path) as (_, address), kept_at(address) as kept:
        ids = [f"resp_{number}" for number in range(20)]
        assert all(await asyncio.gather(*(kept.keep(ME, one, KEPT) for one in ids)))
        gone, later = ids[:10], [f"later_{number}" for number in range(10)]
        done = await asyncio.gather(
            *(kept.forget(ME, one) for one in gone), *(kept.keep(ME, one, KEPT) for one in later)
        )
        assert all(done[: len(gone)])
        for one, was_kept in zip(later, done[len(gone) :], strict=True):
            assert (await kept.find(ME, one) == KEPT) == was_kept
        assert [await kept.find(ME, one) for one in ids] == [None] * 10 + [KEPT] * 10
