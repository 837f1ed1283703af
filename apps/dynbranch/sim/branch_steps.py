"""What may happen next in a world with a branch: deliveries, and what people, backends and time do."""

from __future__ import annotations

from typing import assert_never

from dynbranch.controller.core.branches.messages import StageKey
from dynbranch.sim.branch_cast import At, Phase, Step, Work, place_of
from dynbranch.sim.branch_world import BranchWorld


def steps_of(world: BranchWorld) -> list[Step]:
    deliveries = deliveries_of(world)
    eager = [step for step in deliveries if step[0] in world.scenario.eager]
    return eager[:1] or [*deliveries, *_others(world)]


def deliveries_of(world: BranchWorld) -> list[Step]:
    """What is under way, and can come to its next place."""
    found: list[Step] = [("propose",)] if world.proposals else []
    found += [step for key, work in world.work.items() if (step := _step_of(world, key, work))]
    found += [("begin", place_of(key)) for key in world.begins]
    found += [("let go", place_of(key)) for key in dict.fromkeys(world.let_go)]
    found += [("discard" if not d.handled else "discarded", n) for n, d in world.discards.items()]
    found = [s for s in found if s[0] != "discarded" or not world.discards[s[1]].aborting]
    found += [("abort", one.hex()) for one in sorted(world.aborts)]
    found += [("order", one.hex()) for one in world.orders]
    found += [("left", one.hex(), str(follower)) for one, follower in world.lefts]
    found += [("run", one.hex()) for one in world.running]
    found += [("commit", one.hex()) for one in world.commits]
    found += [("release", one.hex()) for one in sorted(world.releases)]
    found += _write_of(world)
    for number, request in enumerate(world.requests):
        if request.at is At.WAITING:
            if request.generation in world.ends:
                found.append(("served", str(number)))
        elif request.at not in (At.HOME, At.SERVED):
            found.append((request.at.name.lower(), str(number)))
    waiting = [row.number for row in world.settlements() if row.number not in world.told]
    found += [("settle", str(n)) for n in (waiting if world.scenario.any_order else waiting[:1])]
    return found


def _write_of(world: BranchWorld) -> list[Step]:
    """Writes come one after the other, each when the slices of the one before are gone."""
    if world.writing is not None:
        return [("look",)]
    if world.slices:
        return [("slice",)]
    return [("write",)] if world.acknowledged < world.version else []


def _step_of(world: BranchWorld, key: StageKey, work: Work) -> Step | None:
    match work.phase:
        case Phase.PREPARING:
            return ("prepare", place_of(key))
        case Phase.LEAVING:
            return ("granted", place_of(key)) if work.reply is not None else None
        case Phase.JOINING:
            return ("join", place_of(key))
        case Phase.FOLLOWING:
            assert work.generation is not None
            return ("ended", place_of(key)) if work.generation.generation_id in world.ends else None
        case _:
            assert_never(work.phase)


def _others(world: BranchWorld) -> list[Step]:
    """What people, harnesses, backends and time do of themselves."""
    scenario = world.scenario
    found: list[Step] = []
    for number, request in enumerate(world.requests):
        after = request.wanted.after
        if request.at is At.HOME and (after is None or world.requests[after].at is At.SERVED):
            found.append(("demand", str(number)))
    if world.changes < scenario.writes:
        found.append(("change",))
    if not world.decided:
        found += [("decide", selection) for selection in scenario.selections]
    if world.restarts < scenario.restarts:
        found.append(("restart",))
    if scenario.expires and not world.expired:
        found.append(("expire",))
    if world.failures < scenario.failures:
        found += [("fail", one.hex()) for one in world.running]
    return found
