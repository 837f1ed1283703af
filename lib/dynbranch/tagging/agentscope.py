"""AgentScope's agents: each call of a model says which agent makes it, and how often it has."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from contextlib import aclosing
from typing import Any, Final

from dynbranch.tagging.patches import Patches
from dynbranch.tagging.tags import Tags, driven, new_id, telling, told_here, turn_of

PACKAGE: Final = "agentscope"


def listen(patches: Patches, *, steps: bool) -> bool:
    """False: it is not installed. ``steps``: stages have the number of the agent's call in their names."""
    if importlib.util.find_spec(PACKAGE) is None:
        return False
    agents: Any = importlib.import_module(f"{PACKAGE}.agent")
    patches.put(agents.Agent, "_reply", _as_workflow)
    patches.put(agents.Agent, "_call_model", lambda original: _as_agent(original, steps))
    return True


def _as_workflow(original: Any) -> Any:
    """The session of an agent is a workflow, unless one is told already: it may be another one's tool."""

    @functools.wraps(original)
    async def _reply(agent: Any, *args: Any, **kwargs: Any) -> Any:
        told = told_here(Tags(agent=agent.name))
        session = getattr(agent.state, "session_id", "") or new_id()
        told.tags = told.tags.over(Tags(f"agentscope/{agent.name}", session))
        async with aclosing(driven(original(agent, *args, **kwargs), told)) as items:
            async for item in items:
                yield item

    return _reply


def _as_agent(original: Any, steps: bool) -> Any:
    @functools.wraps(original)
    async def _call_model(agent: Any, *args: Any, **kwargs: Any) -> Any:
        # A stream that it returns is read later; its request has gone out by then.
        with telling(told_here(turn_of(agent.name, steps=steps))):
            return await original(agent, *args, **kwargs)

    return _call_model
