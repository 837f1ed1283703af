"""Golden traces: what the services say to each other in three short stories, line by line.

``python -m simulation.test_traces`` (with ``tests`` on the path) writes the files anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from dynbranch.domain.ids import RecordId
from dynbranch.domain.reuse import PURE, Identity, ReadScope
from dynbranch.sim.gateway_node import Answer, Asked
from dynbranch.sim.stages import Kind, Stage, Wanted
from dynbranch.sim.weather import Weather
from dynbranch.sim.world import Plan, World

FOLDER = Path(__file__).parent / "traces"
QUIET = Weather(clients=0, write_every_s=1e9, delay_ms=1.0)
RECORD = RecordId("notes/a")


class Steady(Random):
    """Every delay is its mean."""

    def random(self) -> float:
        return 0.5

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1.0 / lambd


class Story:
    """A world in which only what is told happens. Moments are milliseconds."""

    def __init__(self, weather: Weather = QUIET) -> None:
        self.world = World(Plan(1, 0, weather=weather, trace_lines=1000), Steady(1))
        self.answers: list[Answer] = []

    def at(self, ms: float, action: Callable[[], object]) -> None:
        self.world.heap.at(ms / 1000, lambda: action() and None)

    def ask(self, ms: float, stage: Stage, *, gateway: int = 0, leaves_after_ms: float = 0) -> None:
        sources = ("notes",) if stage.kind is Kind.TOOL else ()
        wanted = Wanted(
            stage, self.world.workload.name(stage, ""), ReadScope(sources=sources) if sources else PURE
        )
        asked = Asked(wanted, Identity(workflow_id="story"), stream=False, may_hit=True)

        def begin() -> None:
            serving = self.world.gateways[gateway].serve(asked, self.answers.append)
            if leaves_after_ms:
                self.world.heap.after(leaves_after_ms / 1000, serving.leave)

        self.at(ms, begin)

    def write(self, ms: float) -> None:
        note = self.world.trace.note
        self.at(ms, lambda: self.world.backend.write(RECORD, lambda: note("writer", "acknowledged", RECORD)))

    def told(self, until_ms: float) -> str:
        heap = self.world.heap
        while heap.now * 1000 < until_ms and heap.step():
            pass
        self.world._check_quiet()
        ids: dict[str, str] = {}

        def short(match: re.Match[str]) -> str:
            return ids.setdefault(match[0], f"#{len(ids) + 1}")

        lines = (line[14:].strip() for line in self.world.trace.lines())
        return "\n".join(re.sub(r"\b[0-9a-f]{8}\b", short, line) for line in lines) + "\n"


def executed_joined_hit() -> str:
    story = Story()
    model = story.world.workload.models[0]
    story.ask(0, model)
    story.ask(5, model, gateway=1)
    story.ask(200, model)
    told = story.told(12_000)
    assert [answer.how for answer in story.answers] == ["miss", "joined", "hit"]
    return told


def written_while_it_runs() -> str:
    story = Story()
    tool = story.world.workload.tools[0]
    story.ask(0, tool)
    story.write(15)
    story.ask(24, tool, gateway=1)
    story.ask(200, tool)
    told = story.told(12_000)
    assert sorted(answer.how for answer in story.answers) == ["hit", "miss", "miss"]
    return told


def power_lost_and_a_client_gone() -> str:
    story = Story()
    model = story.world.workload.models[0]
    story.ask(0, model)
    story.at(38, lambda: story.world.csl.lose(power=True))
    story.ask(44, model, gateway=1)
    story.at(90, story.world.csl.restart)
    story.ask(100, model, leaves_after_ms=6)
    story.ask(300, model, gateway=1)
    told = story.told(13_000)
    assert [answer.how for answer in story.answers] == ["miss", "miss", "miss"]
    return told


STORIES = (executed_joined_hit, written_while_it_runs, power_lost_and_a_client_gone)


@pytest.mark.parametrize("story", STORIES)
def test_the_services_say_what_they_said(story: Callable[[], str]) -> None:
    assert story() == (FOLDER / f"{story.__name__}.txt").read_text()


if __name__ == "__main__":
    for one in STORIES:
        (FOLDER / f"{one.__name__}.txt").write_text(one())
