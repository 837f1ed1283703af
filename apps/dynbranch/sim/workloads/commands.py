"""Commands: runs of a coding agent on real repositories, step by step as they were. Each request holds all
before it, the agent's own words too, so that none can be written before the one before it is over: what is
seen here is what DynBranch costs where it can not help, and what exact repetitions gain."""

from __future__ import annotations

from itertools import pairwise

from dynbranch.records.loading import Record
from dynbranch.sim.fleet.workflows import Call, Step, Turn
from dynbranch.sim.workloads import shapes
from dynbranch.sim.workloads.stories import Deck, Making, Story


class CommandsWriter:
    def __init__(self, making: Making) -> None:
        self.making, numbers = making, making.numbers
        self.template = shapes.plain("commands")
        runs = [run for run in self.making.records.runs if run["steps"] and run["steps"][0].get("pin")]
        self._deck = Deck(runs, f"commands {self.making.seed}")
        self._longest = numbers["commands.longest_prompt_tokens"]
        self._tokens_per_s = numbers["commands.tokens_per_s"]
        self._longest_tool_s = numbers["commands.longest_tool_s"]

    def write(self, number: int, lent: Story | None = None) -> Story:
        _, run = self._deck.draw()
        steps: list[Step] = []
        tool_s = [0.0, *(self._tool_s(*two) for two in pairwise(run["steps"]))]
        for place, (step, before_s) in enumerate(zip(run["steps"], tool_s, strict=True)):
            if step["pin"] > self._longest:
                break
            output_tokens = max(1, step["out"])
            blocks = self.making.prefixes.conversation((), number, step["pin"], output_tokens)
            content = f"step {self.making.own(number)} {place}"
            steps.append(
                Step(Call(shapes.STEP, content, step["pin"], output_tokens, blocks, before_s=before_s))
            )
        return Story((Turn(tuple(steps)),))

    def again(self, number: int, story: Story) -> Story:
        return story

    def _tool_s(self, step: Record, after: Record) -> float:
        """What of the time between two answers was not the second one's decode."""
        passed_s = after["t"] - step["t"] - after["out"] / self._tokens_per_s
        return float(min(max(0.0, passed_s), self._longest_tool_s))
