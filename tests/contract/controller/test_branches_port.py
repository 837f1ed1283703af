"""The in-memory twin and the served controller tell templates and branches alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dynbranch.clients.controller import GrpcController
from dynbranch.clients.ports import Branches, Unreachable
from dynbranch.controller.branch_server import branch_service
from dynbranch.controller.fake import FakeController
from dynbranch.controller.templates_in_force import Templates
from dynbranch.domain.branches import BranchSummary, TemplateSource
from dynbranch.domain.errors import NotFound
from dynbranch.domain.ids import BranchId
from dynbranch.runtime.channel import channel
from dynbranch.runtime.clock import ManualClock, SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.v1 import controller_pb2 as pb
from dynbranch.v1.controller_pb2_grpc import BranchServiceStub
from unit.controller.branches.world import World, world

TIMEOUT_S = 20.0


@dataclass
class Told:
    """A controller with one template and two branches, the newer of workflow w2."""

    branches: Branches
    ids: tuple[BranchId, BranchId]


@asynccontextmanager
async def twin(folder: Path) -> AsyncIterator[Told]:
    fake = FakeController()
    fake.put_templates(TemplateSource("ways", "text"))
    ids = (BranchId(b"first"), BranchId(b"second"))
    for number, branch_id in enumerate(ids, 1):
        summary = BranchSummary(branch_id, "ways", f"w{number}", "way", "open", opened=1)  # type: ignore[arg-type]
        fake.branches[branch_id] = summary, json.dumps({"branch": branch_id.hex(), "state": "open"})
    yield Told(fake, ids)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Told]:
    async with world(folder) as there:
        server = GrpcServer(
            "127.0.0.1:0", [branch_service(there.branching.templates, there.branching)], SystemClock()
        )
        client = GrpcController(await server.start())
        yield Told(client, await _two_open(there))
        await client.close()
        await server.stop(0)


async def _two_open(there: World) -> tuple[BranchId, BranchId]:
    who = [there.arrive_as(f"w{number}") for number in (1, 2)]
    await there.until(lambda: all(one.state == "open" for one in there.branching.listed("", 9)))
    newest, oldest = there.branching.listed("", 9)
    assert [oldest.workflow_id, newest.workflow_id] == who
    return oldest.branch_id, newest.branch_id


@pytest.fixture(params=[twin, served], ids=["fake", "grpc"])
async def told(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Told]:
    async with request.param(tmp_path) as made:
        yield made


async def test_whoever_watches_hears_the_templates_at_once(told: Told) -> None:
    async with aclosing(told.branches.watch_templates()) as watch:
        async with asyncio.timeout(TIMEOUT_S):
            first = await anext(watch)
    assert [one.workflow_type_id for one in first.templates] == ["ways"] and first.templates[0].text


async def test_branches_are_listed_newest_first(told: Told) -> None:
    oldest, newest = told.ids
    listed = await told.branches.list_branches(workflow_id="", at_most=9, timeout_s=TIMEOUT_S)
    assert [one.branch_id for one in listed] == [newest, oldest]
    assert {one.state for one in listed} == {"open"}
    (one,) = await told.branches.list_branches(workflow_id="w1", at_most=9, timeout_s=TIMEOUT_S)
    assert one.branch_id == oldest and one.decision_point == "way"
    (one,) = await told.branches.list_branches(workflow_id="", at_most=1, timeout_s=TIMEOUT_S)
    assert one.branch_id == newest


async def test_a_branch_is_an_object(told: Told) -> None:
    view = json.loads(await told.branches.inspect_branch(told.ids[0], timeout_s=TIMEOUT_S))
    assert view["branch"] == told.ids[0].hex() and view["state"] == "open"


async def test_a_branch_that_nobody_knows_is_not_found(told: Told) -> None:
    with pytest.raises(NotFound):
        await told.branches.inspect_branch(BranchId(b"nobody's"), timeout_s=TIMEOUT_S)


async def test_a_controller_without_a_store_tells_its_templates_and_has_no_branches() -> None:
    server = GrpcServer("127.0.0.1:0", [branch_service(Templates(None, SystemClock()), None)], SystemClock())
    client = GrpcController(await server.start())
    async with aclosing(client.watch_templates()) as watch:
        assert (await anext(watch)).templates == ()
    assert await client.list_branches(workflow_id="", at_most=9, timeout_s=TIMEOUT_S) == ()
    with pytest.raises(NotFound):
        await client.inspect_branch(BranchId(b"nobody's"), timeout_s=TIMEOUT_S)
    await client.close()
    await server.stop(0)


TEXT = "workflow_type: ways\nversion: {}\nstages:\n  plan: {{kind: chat, request: x}}\n"


async def test_what_has_not_changed_is_not_said_again(tmp_path: Path) -> None:
    file = tmp_path / "ways.yaml"
    file.write_text(TEXT.format(1))
    clock = ManualClock()
    templates = Templates(tmp_path, clock, repeat_s=0.01)
    await templates.look()
    server = GrpcServer("127.0.0.1:0", [branch_service(templates, None)], SystemClock())
    target = await server.start()
    client = GrpcController(target)
    async with channel(target) as raw, asyncio.timeout(TIMEOUT_S):
        watch = BranchServiceStub(raw).WatchTemplates
        said = [one async for one in aislice(watch(pb.WatchTemplatesRequest(takes_unchanged=True)), 3)]
        assert [(len(one.templates), one.unchanged) for one in said] == [(1, False), (0, True), (0, True)]
        said = [one async for one in aislice(watch(pb.WatchTemplatesRequest()), 2)]
        assert [(len(one.templates), one.unchanged) for one in said] == [(1, False)] * 2, "who may not know"
        async with aclosing(client.watch_templates()) as heard:
            first, again = await anext(heard), await anext(heard)
            assert again is first and first.templates[0].text == TEXT.format(1)
            file.write_text(TEXT.format(12))
            clock.advance(10.0)
            await templates.look()
            while (changed := await anext(heard)) is first:
                pass
            assert changed.templates[0].text == TEXT.format(12)
    await client.close()
    await server.stop(0)


async def aislice(messages: Any, count: int) -> AsyncIterator[Any]:
    """The first so many, and then the call is ended."""
    async for message in messages:
        yield message
        count -= 1
        if not count:
            break
    messages.cancel()


async def test_a_twin_that_is_lost_ends_its_watchers() -> None:
    fake = FakeController()
    async with aclosing(fake.watch_templates()) as watch:
        await anext(watch)
        fake.lose()
        with pytest.raises(Unreachable):
            await anext(watch)
