"""Records requests with what came of them: templates are checked and learned from it, and it is replayed.

One JSON object a line, in the order of arrival: what ``dynbranch template`` and ``dynbranch sim`` read. Off
unless asked for: the file holds whole prompts and answers, or digests of them. Headers are never in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, assert_never

from dynbranch.domain.events import Selection
from dynbranch.domain.ids import Name
from dynbranch.domain.reuse import Identity
from dynbranch.domain.template import Output, StageKind
from dynbranch.gateway.record_file import LinesLost, RecordFile
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

MAX_OPEN: Final = 1024
"""Requests that wait for an earlier one's answer; beyond it the earliest is written without."""

MAX_HELD_BYTES: Final = 32 * 2**20
"""Of requests that are not written yet, under way or not. What would be more is not recorded."""

MAX_OPEN_BYTES: Final = MAX_HELD_BYTES * 3 // 4
"""Of those that wait for an earlier one's answer, as of ``MAX_OPEN``: the rest is for what is being written,
so that one long answer never keeps all that comes after it out of the file."""

ALL_TYPES: Final = "*"
ANY_KEY: Final = "*"
_GATHER_S: Final = 0.1
_DIGEST_CHARACTERS: Final = 32


class Bodies(Enum):
    """What is recorded of requests and answers. HASHED: what a harness or a model said stands there as a
    digest, which tells equal from different."""

    KEPT = "kept"
    HASHED = "hashed"


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """``types``: the workflow types that are recorded; ``*`` stands for all, and for requests of none."""

    path: Path
    types: frozenset[str]
    bodies: Bodies = Bodies.KEPT
    file_bytes: int = 256 * 2**20
    files: int = 4


@dataclass(frozen=True, slots=True)
class Noted:
    """One request as it came. ``name`` is None where its result is not reused. ``reads`` is None where
    nothing is known of them."""

    identity: Identity
    stage: str
    kind: StageKind
    target: str
    body: bytes
    name: Name | None = None
    reads: tuple[str, ...] | None = None
    parent_id: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a request. No ``output``: it failed, or could not be read. ``execution_ms`` is that of the
    generation, also where another request had paid for it; None: not known."""

    outcome: str
    output: Output | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    execution_ms: float | None = None
    failed: bool = False


@dataclass(slots=True)
class Recorded:
    """One request on its way to the file."""

    noted: Noted
    at_ms: float
    size: int
    selections: list[Selection] = field(default_factory=list)
    came: Came | None = None
    done_ms: float = 0.0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Wrote:
    """Records that a source has reported to be written, when that was acknowledged."""

    records: tuple[str, ...]
    at_ms: float
    size: int
    is_over: bool = True


class Recorder:
    """``note`` at the arrival, ``end`` with the answer. ``run`` writes; neither of the others waits.

    Times are milliseconds since 1970 that never run backwards, so that files of several gateways can be put
    together.
    """

    def __init__(self, policy: RecordPolicy, clock: Clock) -> None:
        self._policy = policy
        self._file = RecordFile(policy.path, file_bytes=policy.file_bytes, files=policy.files)
        self._clock = clock
        self._zero_ms = clock.unix_ms() - clock.now() * 1000
        self._open: deque[Recorded | Wrote] = deque()
        self._open_bytes = 0
        self._finished: list[Recorded | Wrote] = []
        self._held_bytes = 0
        self._some = asyncio.Event()
        self._troubled = False
        self.written = 0
        self.dropped = 0

    def wants(self, identity: Identity) -> bool:
        types = self._policy.types
        return (identity.workflow_type_id in types and bool(identity.workflow_id)) or ALL_TYPES in types

    def note(self, noted: Noted) -> Recorded | None:
        """None: too much is held already."""
        size = len(noted.body)
        if not self._takes(size):
            return None
        recorded = Recorded(noted, self._now_ms(), size)
        self._open.append(recorded)
        return recorded

    def wrote(self, records: Sequence[str]) -> None:
        """A write, in its place among the arrivals."""
        wrote = Wrote(tuple(records), self._now_ms(), sum(map(len, records)))
        if self._takes(wrote.size):
            self._open.append(wrote)
            self._pass_on()

    def selected(self, recorded: Recorded, selections: Sequence[Selection]) -> None:
        """What its request or its answer decided, where a template says so."""
        if not recorded.is_over:
            recorded.selections += selections

    def end(self, recorded: Recorded, came: Came) -> None:
        if recorded.is_over:
            return
        output = came.output
        if output is not None:
            added = len(output.text) + len(output.reasoning)
            added += sum(len(call.arguments) for call in output.calls)
            recorded.size += added
            self._held_bytes += added
            self._open_bytes += added
        recorded.came, recorded.done_ms, recorded.is_over = came, self._now_ms(), True
        self._pass_on()

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await self._some.wait()
            await self._clock.sleep(_GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what is finished."""
        finished, self._finished = self._finished, []
        self._some.clear()
        if not finished:
            return
        try:
            await asyncio.to_thread(self._append, finished)
        except LinesLost as lost:
            self.written += len(finished) - lost.count
            self._lost(lost)
        else:
            self.written += len(finished)
            self._troubled = False
        finally:
            self._held_bytes -= sum(recorded.size for recorded in finished)

    def _append(self, finished: Sequence[Recorded | Wrote]) -> None:
        """In a thread: the digests and texts of large bodies take milliseconds. Raises LinesLost."""
        bodies = self._policy.bodies
        self._file.append([_encoded(_line(one, _Secrecy(bodies))) for one in finished])

    def _lost(self, lost: LinesLost) -> None:
        self.dropped += lost.count
        if not self._troubled:
            _log.error("requests can not be recorded in %s: %s", self._policy.path, lost)
        self._troubled = True

    def _now_ms(self) -> float:
        return round(self._zero_ms + self._clock.now() * 1000, 3)

    def _takes(self, size: int) -> bool:
        """Counts one more, where there is room for it."""
        self._give_up_the_earliest(size)
        if self._held_bytes + size > MAX_HELD_BYTES:
            self.dropped += 1
            return False
        self._held_bytes += size
        self._open_bytes += size
        return True

    def _give_up_the_earliest(self, coming: int) -> None:
        """Until another one of that size may wait with the rest."""
        while self._open and (len(self._open) >= MAX_OPEN or self._open_bytes + coming > MAX_OPEN_BYTES):
            earliest = self._open[0]
            if isinstance(earliest, Recorded):
                earliest.is_over = True
            self._pass_on()

    def _pass_on(self) -> None:
        """Those that no earlier one keeps waiting."""
        while self._open and self._open[0].is_over:
            passed = self._open.popleft()
            self._open_bytes -= passed.size
            self._finished.append(passed)
            self._some.set()


def _line(one: Recorded | Wrote, secret: _Secrecy) -> dict[str, Any]:
    match one:
        case Wrote(records, at_ms):
            return {"kind": "write", "records": [secret.record(record) for record in records], "at_ms": at_ms}
        case Recorded():
            return _request_line(one, secret)
        case _:
            assert_never(one)


def _encoded(line: dict[str, Any]) -> bytes:
    # Half of a surrogate pair, which a model's text may hold, is no UTF-8.
    return (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _request_line(recorded: Recorded, secret: _Secrecy) -> dict[str, Any]:
    noted, came = recorded.noted, recorded.came
    identity = noted.identity
    line: dict[str, Any] = {
        "workflow_type": identity.workflow_type_id,
        "workflow_id": identity.workflow_id,
        "agent_id": identity.agent_id,
        "parent_id": noted.parent_id,
        "turn": noted.turn,
        "tenant": identity.tenant,
        "stage": noted.stage,
        "kind": noted.kind.value,
        "target": noted.target,
        "name": noted.name.hex() if noted.name is not None else "",
        "at_ms": recorded.at_ms,
    }
    line |= secret.body(noted.body)
    if noted.reads is not None:
        line["reads"] = [secret.record(read) for read in noted.reads]
    if recorded.selections:
        line["selections"] = [_selection(one, secret) for one in recorded.selections]
    if came is not None:
        line |= {"done_ms": recorded.done_ms, "outcome": came.outcome}
        line |= {"prompt_tokens": came.prompt_tokens, "output_tokens": came.output_tokens}
        if came.execution_ms is not None:
            line["execution_ms"] = round(came.execution_ms, 3)
        if came.failed:
            line["failed"] = True
        if came.output is not None:
            line |= secret.output(came.output)
    return line


@dataclass(frozen=True, slots=True)
class _Secrecy:
    bodies: Bodies

    def body(self, body: bytes) -> dict[str, Any]:
        match self.bodies:
            case Bodies.KEPT:
                return {"body": body.decode("utf-8", "replace")}
            case Bodies.HASHED:
                return {"body_sha256": hashlib.sha256(body).hexdigest()}
            case _:
                assert_never(self.bodies)

    def output(self, output: Output) -> dict[str, Any]:
        said = {
            "text": output.text,
            "calls": [{"name": call.name, "arguments": call.arguments} for call in output.calls],
            "reasoning": output.reasoning,
            "finish": output.finish,
        }
        match self.bodies:
            case Bodies.KEPT:
                return {"output": said}
            case Bodies.HASHED:
                return {"output_sha256": _digest(json.dumps(said)), "finish": output.finish}
            case _:
                assert_never(self.bodies)

    def text(self, text: str) -> str:
        return text if self.bodies is Bodies.KEPT else _digest(text)[:_DIGEST_CHARACTERS]

    def record(self, record: str) -> str:
        """Its source stays, and so does "any of them"."""
        source, _, key = record.partition("/")
        return record if key == ANY_KEY else f"{source}/{self.text(key)}"


def _selection(selection: Selection, secret: _Secrecy) -> dict[str, Any]:
    if selection.ambiguous:
        return {"point": selection.decision_point, "ambiguous": True}
    return {"point": selection.decision_point, "chosen": [secret.text(one) for one in selection.chosen]}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
