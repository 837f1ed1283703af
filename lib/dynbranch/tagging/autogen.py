"""AutoGen's agents and teams: a run of a team is a workflow, and its agents say their names."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from contextlib import aclosing
from typing import Any, Final

from dynbranch.tagging.patches import Patches
from dynbranch.tagging.tags import Tags, driven, new_id, told_here, turn_of

PACKAGE: Final = "autogen_agentchat"


def listen(patches: Patches, *, steps: bool) -> bool:
    """False: it is not installed. ``steps``: stages have the number of the agent's turn in their names."""
    if importlib.util.find_spec(PACKAGE) is None:
        return False
    agents: Any = importlib.import_module(f"{PACKAGE}.agents")
    teams: Any = importlib.import_module(f"{PACKAGE}.teams")
    patches.put(teams.BaseGroupChat, "run_stream", _as_workflow)
    for kind in [kind for kind in vars(agents).values() if isinstance(kind, type)]:
        if "on_messages_stream" in vars(kind):
            patches.put(kind, "on_messages_stream", lambda original: _as_agent(original, steps))
    return True


def _as_workflow(original: Any) -> Any:
    @functools.wraps(original)
    async def run_stream(team: Any, *args: Any, **kwargs: Any) -> Any:
        # A team in a team is no workflow of its own: what is told already stands.
        told = told_here(Tags())
        own = Tags(f"autogen/{team.name}", new_id())
        told.tags = told.tags.over(own)
        async with aclosing(driven(original(team, *args, **kwargs), told)) as items:
            async for item in items:
                yield item

    return run_stream


def _as_agent(original: Any, steps: bool) -> Any:
    @functools.wraps(original)
    async def on_messages_stream(agent: Any, *args: Any, **kwargs: Any) -> Any:
        told = told_here(turn_of(agent.name, steps=steps))
        async with aclosing(driven(original(agent, *args, **kwargs), told)) as items:
            async for item in items:
                yield item

    return on_messages_stream
