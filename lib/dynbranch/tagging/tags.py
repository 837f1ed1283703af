"""Who asks: what the person or the framework that drives an agent says of the calls that are being made.

What is said lives in context variables, so that every asyncio task, and every thread that is given a context,
has its own.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final, ParamSpec, TypeVar
from urllib.parse import quote

from dynbranch.tagging.outcomes import Outcomes

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_TAG_CHARACTERS: Final = 200
MAX_STAGE_CHARACTERS: Final = 64
_PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F))
# What separates reads, and what escapes, is escaped.
_PLAIN_IN_RECORDS: Final = "".join(char for char in _PRINTABLE if char not in ",=% ")
_VERSION: Final = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Tags:
    """An empty string means not said. ``parent`` is the agent that started ``agent``."""

    workflow_type: str = ""
    workflow: str = ""
    agent: str = ""
    stage: str = ""
    reads: tuple[str, ...] = ()
    parent: str = ""

    def over(self, other: Tags) -> Tags:
        """These, and the other's where one is not said; a parent goes with its agent."""
        return Tags(
            self.workflow_type or other.workflow_type,
            self.workflow or other.workflow,
            self.agent or other.agent,
            self.stage or other.stage,
            self.reads or other.reads,
            self.parent if self.agent else other.parent,
        )

    def under(self, agent: str) -> Tags:
        """These, of an agent that this one has started."""
        return replace(self, parent=agent) if self.agent not in ("", agent) else self

    def headers(self) -> Iterator[tuple[str, str]]:
        yield from (
            (name, tag_text(text))
            for name, text in (
                ("x-dynbranch-workflow-type", self.workflow_type),
                ("x-dynbranch-workflow", self.workflow),
                ("x-dynbranch-agent", self.agent),
                ("x-dynbranch-parent", self.parent),
                ("x-dynbranch-stage", self.stage),
            )
            if text
        )
        if self.reads:
            yield "x-dynbranch-reads", ", ".join(self.reads)


def tag_text(text: str) -> str:
    """As it can stand in a header: what is not printable ASCII is percent-encoded, and the end of what is too
    long is a digest."""
    encoded = quote(text.strip(), safe=_PRINTABLE, errors="replace")
    if len(encoded) <= MAX_TAG_CHARACTERS:
        return encoded
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:16]
    return f"{encoded[: MAX_TAG_CHARACTERS - len(digest) - 1]}~{digest}"


def stage_text(text: str) -> str:
    """A name that a stage of a template may have, made of one that a framework's node has."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", text)
    if not re.match(r"[A-Za-z]", name):
        name = f"s{name}"
    if len(name) <= MAX_STAGE_CHARACTERS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: MAX_STAGE_CHARACTERS - len(digest) - 1]}_{digest}"


def read_text(read: str | tuple[str, str]) -> str:
    """One read as the header spells it: ``source/key``, or that and the version that was read. Raises
    ValueError."""
    record, version = (read, "") if isinstance(read, str) else read
    source, slash, key = record.partition("/")
    if not (source and slash and key):
        raise ValueError(f"a record is source/key, not {record!r}")
    if version and not _VERSION.fullmatch(version):
        raise ValueError(f"a version is epoch.sequence, not {version!r}")
    encoded = quote(record, safe=_PLAIN_IN_RECORDS)
    return f"{encoded}={version}" if version else encoded


# -- what is said --------------------------------------------------------------------------------------------


def new_id() -> str:
    """Of a workflow that nobody has given one."""
    return uuid.uuid4().hex


class Turns:
    """How often each agent of a run was asked."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._of: dict[str, int] = {}

    def next(self, agent: str) -> int:
        """1 for the first."""
        with self._lock:
            self._of[agent] = self._of.get(agent, 0) + 1
            return self._of[agent]


@dataclass(frozen=True, slots=True)
class Workflow:
    """One run of a workflow, and what the gateway answered to its calls so far."""

    type: str
    id: str
    outcomes: Outcomes = field(default_factory=Outcomes)
    turns: Turns = field(default_factory=Turns)


@dataclass(frozen=True, slots=True)
class _Said:
    tags: Tags = Tags()
    workflow: Workflow | None = None


_NOTHING: Final = _Said()
_SAID: Final[ContextVar[_Said]] = ContextVar("dynbranch_said", default=_NOTHING)


@contextmanager
def workflow(
    workflow_type: str, workflow_id: str | None = None, *, agent: str = "", stage: str = ""
) -> Iterator[Workflow]:
    """What runs inside is one workflow. Without an id it has a new one. Raises ValueError without a type."""
    if not workflow_type.strip():
        raise ValueError("a workflow has a type")
    run = Workflow(workflow_type, workflow_id or new_id())
    with _saying(_Said(Tags(run.type, run.id, agent, stage), run)):
        yield run


@contextmanager
def agent(name: str) -> Iterator[None]:
    """What runs inside is asked by this agent of the workflow; it was started by the agent around it."""
    said = _SAID.get()
    tags = replace(said.tags, agent=name).under(said.tags.agent)
    with _saying(replace(said, tags=tags)):
        yield


@contextmanager
def stage(name: str) -> Iterator[None]:
    """What runs inside is this stage, as its template calls it."""
    said = _SAID.get()
    with _saying(replace(said, tags=replace(said.tags, stage=name))):
        yield


@contextmanager
def reads(*records: str | tuple[str, str]) -> Iterator[None]:
    """What is asked inside depends on these records, each ``"source/key"`` or that with the version that was
    read, ``("source/key", "epoch.sequence")``, and on those of the blocks around it."""
    said = _SAID.get()
    together = dict.fromkeys((*said.tags.reads, *(read_text(record) for record in records)))
    with _saying(replace(said, tags=replace(said.tags, reads=tuple(together)))):
        yield


@contextmanager
def _saying(said: _Said) -> Iterator[None]:
    before = _SAID.get()
    _SAID.set(said)
    try:
        yield
    finally:
        # Not by a token: a generator may be closed in another context than it was begun in.
        _SAID.set(before)


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with what is said here and now, for a thread that would not know it:
    ``executor.submit(carried(ask), question)``. It may be called several times at once."""
    context = copy_context()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # A context can be entered once at a time, a copy of it by everyone.
        return context.copy().run(function, *args, **kwargs)

    return run


# -- what a framework tells ----------------------------------------------------------------------------------


class Told:
    """What a framework tells of a run, until that has ended. Its end is told to the object, since it may come
    from a task whose context is not the one that made the call."""

    __slots__ = ("__weakref__", "before", "ended", "tags", "turns")

    tags: Tags
    turns: Turns

    def __init__(self, tags: Tags, before: Told | None) -> None:
        self.tags = tags if before is None else tags.under(before.tags.agent).over(before.tags)
        self.before = before
        self.turns = Turns() if before is None else before.turns
        self.ended = False

    def end(self) -> None:
        self.ended = True


_TOLD: Final[ContextVar[Told | None]] = ContextVar("dynbranch_told", default=None)


def tell(tags: Tags) -> Told:
    """From now on in this context, until it is ended."""
    told = Told(tags, _still_told())
    _TOLD.set(told)
    return told


@contextmanager
def telling(told: Told) -> Iterator[None]:
    before = _TOLD.get()
    _TOLD.set(told)
    try:
        yield
    finally:
        _TOLD.set(before)


def told_here(tags: Tags) -> Told:
    """For ``telling``: the tags, over what is told already."""
    return Told(tags, _still_told())


def _still_told() -> Told | None:
    told = _TOLD.get()
    while told is not None and told.ended:
        told = told.before
    return told


def current(otherwise: Tags) -> Tags:
    """What is said stands before what a framework tells, and that before ``otherwise``."""
    told = _still_told()
    said = _SAID.get().tags
    return (said if told is None else said.over(told.tags)).over(otherwise)


def current_workflow() -> Workflow | None:
    return _SAID.get().workflow


def next_turn(agent: str) -> int:
    """How often the agent was asked in this run, this time included."""
    told, workflow = _still_told(), _SAID.get().workflow
    if told is not None:
        return told.turns.next(agent)
    return 1 if workflow is None else workflow.turns.next(agent)


def turn_of(agent: str, *, steps: bool) -> Tags:
    """What the agent's next call says of it: its name, and with ``steps`` how often it was asked, too."""
    turn = next_turn(agent)
    return Tags(agent=agent, stage=stage_text(f"{agent}-{turn}" if steps else agent))


async def driven(stream: AsyncGenerator[T], told: Told) -> AsyncGenerator[T]:
    """The stream, with ``told`` in force while an item is made, and not while somebody looks at it."""
    async with aclosing(stream):
        while True:
            with telling(told):
                try:
                    item = await anext(stream)
                except StopAsyncIteration:
                    return
            yield item
