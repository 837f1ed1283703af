"""LangGraph, and whatever else runs on LangChain's callbacks.

The listener runs inline, in the context of the call that it is told of, so that what it tells holds for the
HTTP request that follows. A step and a node are a stable coordinate; a namespace of checkpoints is not, as it
holds the ids of tasks, and gives no more than the names of the graphs around a node.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakValueDictionary

from dynbranch.tagging.tags import Tags, Told, stage_text, tell

PACKAGE: Final = "langchain_core"
_PUSHED: Final = "__pregel_push"


def listen(*, steps: bool) -> Listening | None:
    """None: it is not installed."""
    return Listening(steps=steps) if importlib.util.find_spec(PACKAGE) else None


class Listening:
    """A handler in every callback manager that is configured from now on. ``steps``: stages have the number
    of the step in their names."""

    def __init__(self, *, steps: bool) -> None:
        base: Any = importlib.import_module(f"{PACKAGE}.callbacks.base").BaseCallbackHandler
        self._tracers: Any = importlib.import_module(f"{PACKAGE}.tracers.context")
        self._handler: Any = type("DynBranchListener", (Listener, base), {})()
        self._handler.steps = steps
        self._variable: ContextVar[Any] = ContextVar("dynbranch_listener", default=self._handler)
        self._tracers.register_configure_hook(self._variable, inheritable=True)

    def stop(self) -> None:
        """There is no call that takes a hook back: it is removed where it is kept, and else says nothing."""
        self._handler.silent = True
        hooks = getattr(self._tracers, "_configure_hooks", None)
        if isinstance(hooks, list):
            hooks[:] = [hook for hook in hooks if hook[0] is not self._variable]


class Listener:
    """The handler's own half: the other is the package's base of handlers."""

    run_inline = True
    raise_error = False
    silent = False
    steps = True

    def __init__(self) -> None:
        # Runs that nobody is in any more fall out by themselves, ended or not.
        self._running: WeakValueDictionary[Any, Told] = WeakValueDictionary()

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: Any,
        parent_run_id: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """The outermost is the workflow."""
        if parent_run_id is None and not self.silent:
            thread = (metadata or {}).get("thread_id")
            told = Tags(f"langchain/{more.get('name') or 'chain'}", str(thread or run_id))
            self._running[run_id] = tell(told)

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Any,
        *,
        run_id: Any,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        if not self.silent:
            self._running[run_id] = tell(node_tags(metadata or {}, steps=self.steps))

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: Any, **more: Any) -> None:
        self.on_chat_model_start(serialized, prompts, run_id=run_id, **more)

    def _ended(self, told: Any, *, run_id: Any, **more: Any) -> None:
        running = self._running.pop(run_id, None)
        if running is not None:
            running.end()

    on_chain_end = on_chain_error = on_llm_end = on_llm_error = _ended


def node_tags(metadata: Mapping[str, Any], *, steps: bool) -> Tags:
    """Of a model that is called in a node. Outside of any graph only a thread's id is told."""
    thread = str(metadata.get("thread_id") or "")
    node = str(metadata.get("langgraph_node") or "")
    if not node:
        return Tags(workflow=thread)
    named = "/".join((*_graphs_around(str(metadata.get("langgraph_checkpoint_ns") or "")), node))
    step = metadata.get("langgraph_step")
    stage = stage_text(f"{named}-{step}" if steps and step is not None else named)
    return Tags(workflow=thread, agent=named + _number_of(metadata.get("langgraph_path")), stage=stage)


def _graphs_around(namespace: str) -> list[str]:
    """``team:<id>|1|writer:<id>`` is in the graph of the node ``team``."""
    parts = [part.partition(":")[0] for part in namespace.split("|")[:-1]]
    return [part for part in parts if part and not part.isdigit()]


def _number_of(path: Any) -> str:
    """Of several tasks that one step has sent to the same node."""
    match path:
        case (str(kind), int(number), *_) if kind == _PUSHED:
            return f"#{number}"
        case _:
            return ""
