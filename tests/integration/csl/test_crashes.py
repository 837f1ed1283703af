"""Kills and power cuts at random moments, few of them here; ``dynbranch bench store`` does hundreds."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from dynbranch.bench import store_crashes
from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.ports import Unreachable
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.rocks import DataDirectory
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import DemandId, GenerationId, RecordId
from dynbranch.domain.reuse import (
    Commit,
    Committed,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Level,
    Miss,
    ReadScope,
)
from dynbranch.runtime.chance import new_id

StartService = Callable[..., AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]]


UNKNOWN, FELLED = 0, -1


def quiet(what: str, done: int, total: int) -> None:
    """No progress is shown here."""


@pytest.mark.promise("I3")
@pytest.mark.promise("C1.durability")
def test_nothing_acknowledged_is_lost_and_nothing_torn_or_stale() -> None:
    figures, raw = store_crashes.run_crashes(quiet, seed=11, kills=8, cuts=8, restores=4)
    assert {key: figure.value for key, figure in figures.items()} == dict.fromkeys(figures, 0.0), raw
    assert raw["too_little"] == []


@pytest.mark.promise("C1.durability")
def test_the_looking_itself_sees_a_flush_that_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all logs cut to nothing, as on a disk that lies, acknowledged writes are missed."""

    def cut_all(data: Path, target: Path, *rest: object) -> Path:
        shutil.copytree(data, target)
        for log in (target / "rocks").glob("*.log"):
            log.write_bytes(b"")
        DataDirectory(target).claim()
        return target

    monkeypatch.setattr(store_crashes, "_cut", cut_all)
    figures, _ = store_crashes.run_crashes(quiet, seed=5, kills=0, cuts=4, restores=0)
    assert figures["power_loss_acked_lost"].value > 0


@pytest.mark.promise("I3")
async def test_the_real_service_is_killed_under_load_and_loses_nothing(
    tmp_path: Path, service: StartService
) -> None:
    chance = random.Random(3)
    acknowledged: dict[str, int] = {}
    for _ in range(4):
        async with service(tmp_path) as (process, address):
            csl = GrpcCsl(address)
            await check(csl, acknowledged)
            loading = asyncio.ensure_future(load(csl, acknowledged, chance))
            await asyncio.sleep(0.2 + chance.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            with pytest.raises((Unreachable, DomainError)):
                await loading
            await csl.close()
    assert {1, FELLED} <= set(acknowledged.values())


async def load(csl: GrpcCsl, acknowledged: dict[str, int], chance: random.Random) -> None:
    """Every round stores under a new name, reading record 1 or 2, and now and then writes record 2."""
    while True:
        what, record = new_id().hex(), chance.choice((1, 2))
        outcome = await csl.demand(a_demand(what), timeout_s=5)
        assert isinstance(outcome, Miss) and outcome.lease is not None
        reads = (RecordId(f"docs/{record}"),)
        commit = Commit(outcome.lease, what.encode(), digest(what), Level.SOURCED, 1.0, reads=reads)
        assert isinstance(await csl.commit(commit, timeout_s=5), Committed)
        acknowledged[what] = record
        if chance.random() < 0.2:
            felled = [name for name, read in acknowledged.items() if read == 2]
            acknowledged.update(dict.fromkeys(felled, UNKNOWN))
            await csl.write([RecordId("docs/2")], reporter="test", timeout_s=5)
            acknowledged.update(dict.fromkeys(felled, FELLED))


async def check(csl: GrpcCsl, acknowledged: dict[str, int]) -> None:
    """What was stored is served, what an acknowledged write felled is not."""
    for what, read in acknowledged.items():
        outcome = await csl.demand(a_demand(what, may_execute=False), timeout_s=5)
        if read > 0:
            assert isinstance(outcome, Hit) and outcome.payload == what.encode(), what
        elif read == FELLED:
            assert isinstance(outcome, Miss), what


def a_demand(what: str, *, may_execute: bool = True) -> Demand:
    return Demand(
        demand_id=DemandId(new_id()),
        name=name_of(what),
        identity=Identity(),
        scope=ReadScope(sources=("docs",)),
        intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
        may_execute=may_execute,
    )
