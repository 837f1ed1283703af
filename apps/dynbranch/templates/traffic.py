"""Recorded traffic: one JSON object a line, one line a request with its answer, in the order of arrival.

    {"workflow_type": "react", "workflow_id": "w1", "agent_id": "main", "stage": "think", "kind": "chat",
     "target": "a-model", "body": "{…}", "output": "…", "at_ms": 0, "done_ms": 12, "outcome": "miss"}

``body`` is the request as it was sent, as a text. The answer is ``output``, a text or an object with
``text``, ``calls`` and ``finish``; or ``items``, the engine's chunks as texts. ``reads`` are the records that
the request declared to read. All but type, workflow, target and body may be missing; without ``done_ms`` an
answer came before the next request.

A gateway adds what a replay needs: ``tenant``, ``parent_id``, the reuse ``name``, ``selections``, counts of
tokens and ``execution_ms``. One that keeps no bodies writes ``body_sha256`` in place of ``body``, and digests
of what was selected and read: such a file can be replayed, and templates can not be held against it.
Writes that were reported stand between the requests:

    {"kind": "write", "records": ["source/key"], "at_ms": 3}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from dynbranch.domain.events import Selection
from dynbranch.domain.template import Output, StageKind, ToolCall
from dynbranch.naming.assembly import MalformedLog
from dynbranch.rendering.outputs import output_of
from pydantic import BaseModel, ConfigDict, Field, ValidationError

LATEST_MS: Final = 1e13
"""Times count from 1970 or from a recording's own beginning: none is before it, or this far behind it."""

MAX_TOKENS: Final = 10**9
"""Of one request. No engine holds as many."""

_WRITE = re.compile(rb'\s*\{\s*"kind"\s*:\s*"write"')


class TrafficInvalid(Exception):
    """A line is not a recorded request. The message names file and line."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer; ``output`` is None where none came. ``stage`` may be empty. ``reads`` is
    None where nothing is known of them."""

    workflow_type: str
    workflow_id: str
    kind: StageKind
    target: str
    body: bytes
    output: Output | None = None
    stage: str = ""
    agent_id: str = ""
    at_ms: float = 0.0
    done_ms: float | None = None
    outcome: str = ""
    reads: tuple[str, ...] | None = None
    name: str = ""
    """The reuse name in hexadecimal digits; empty where the request is not reused, or that was not told."""
    tenant: str = ""
    parent_id: str = ""
    turn: int = 0
    """How many answers of the model the conversation held already."""
    selections: tuple[Selection, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    execution_ms: float | None = None
    """Of the generation, whoever had paid for it."""
    failed: bool = False
    body_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A source reported that records were written."""

    records: tuple[str, ...]
    at_ms: float


@dataclass(frozen=True, slots=True)
class Recording:
    """Each in the order of the file."""

    exchanges: tuple[Exchange, ...]
    writes: tuple[Written, ...]


_Ms: TypeAlias = Annotated[float, Field(ge=0, le=LATEST_MS, allow_inf_nan=False)]
_Tokens: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class _Write(BaseModel):
    model_config = ConfigDict(extra="ignore")

    records: list[str]
    at_ms: _Ms


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: str


class _Output(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str = ""
    calls: list[_Call] = []
    reasoning: str = ""
    finish: str = ""


class _Selection(BaseModel):
    model_config = ConfigDict(extra="ignore")

    point: str
    chosen: list[str] = []
    ambiguous: bool = False


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")

    workflow_type: str
    workflow_id: str
    kind: Literal["chat", "tool"] = "chat"
    target: str
    body: str | None = None
    body_sha256: str = ""
    stage: str = ""
    agent_id: str = ""
    output: str | _Output | None = None
    items: list[str] | None = None
    at_ms: _Ms = 0.0
    done_ms: _Ms | None = None
    outcome: str = ""
    reads: list[str] | None = None
    name: str = ""
    tenant: str = ""
    parent_id: str = ""
    turn: int = Field(0, ge=0)
    selections: list[_Selection] = []
    prompt_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    execution_ms: _Ms | None = None
    failed: bool = False


def read_traffic(path: Path) -> list[Exchange]:
    """Where every body was kept. Raises TrafficInvalid, OSError."""
    exchanges = read_arrivals(path)
    for number, exchange in enumerate(exchanges, 1):
        if exchange.body_sha256:
            raise TrafficInvalid(
                f"{path}: request {number} was recorded without its body: record with "
                "DYNBRANCH_GATEWAY_RECORD_BODIES=kept"
            )
    return exchanges


def read_arrivals(path: Path) -> list[Exchange]:
    """Bodies may be missing. Raises TrafficInvalid, OSError."""
    return list(read_recording(path).exchanges)


def read_recording(path: Path) -> Recording:
    """Bodies may be missing. What stands after the last line break is being written. Raises TrafficInvalid,
    OSError."""
    exchanges, writes = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or not (line.endswith(b"\n") or _is_whole(line)):
                continue
            place = f"{path}:{number}"
            if _WRITE.match(line):
                writes.append(_written(line, place))
            else:
                exchanges.append(_exchange(line, place))
    return Recording(tuple(exchanges), tuple(writes))


def _written(line: bytes, place: str) -> Written:
    try:
        read = _Write.model_validate_json(line)
    except ValidationError as error:
        raise TrafficInvalid(f"{place}: {_first(error)}") from None
    return Written(tuple(read.records), read.at_ms)


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    what = ".".join(str(part) for part in first["loc"])
    return f"{what}: {first['msg']}" if what else str(first["msg"])


def line_of(exchange: Exchange) -> str:
    """One line, with its line break."""
    line: dict[str, Any] = {
        "workflow_type": exchange.workflow_type,
        "workflow_id": exchange.workflow_id,
        "agent_id": exchange.agent_id,
        "stage": exchange.stage,
        "kind": exchange.kind.value,
        "target": exchange.target,
        "body": exchange.body.decode(),
    }
    output = exchange.output
    if output is not None:
        plain = not output.calls and not output.reasoning and output.finish in ("", "stop")
        line["output"] = output.text if plain else _output_json(output)
    if exchange.reads is not None:
        line["reads"] = list(exchange.reads)
    line["at_ms"] = round(exchange.at_ms, 3)
    if exchange.done_ms is not None:
        line["done_ms"] = round(exchange.done_ms, 3)
    if exchange.outcome:
        line["outcome"] = exchange.outcome
    return json.dumps(line, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Event:
    """A request comes, or its answer does. ``number`` is the line's place among the traffic."""

    number: int
    exchange: Exchange
    answered: bool


def by_workflow(exchanges: Iterable[Exchange]) -> dict[str, list[Exchange]]:
    """Each workflow's exchanges, in their order."""
    grouped: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        grouped.setdefault(exchange.workflow_id, []).append(exchange)
    return grouped


def events(exchanges: list[Exchange]) -> Iterator[Event]:
    """Arrivals and answers in the order in which they happened; an answer before what comes after it."""
    waiting: list[tuple[float, int, Exchange]] = []
    for number, exchange in enumerate(exchanges):
        due = sorted(w for w in waiting if w[0] <= exchange.at_ms)
        waiting = [w for w in waiting if w[0] > exchange.at_ms]
        yield from (Event(n, e, answered=True) for _, n, e in due)
        yield Event(number, exchange, answered=False)
        if exchange.done_ms is None:
            yield Event(number, exchange, answered=True)
        else:
            waiting.append((exchange.done_ms, number, exchange))
    yield from (Event(n, e, answered=True) for _, n, e in sorted(waiting, key=lambda w: w[:2]))


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except RecursionError:
        # It is refused as it stands: nobody writes such a line.
        return True
    except ValueError:
        return False
    return True


def _exchange(line: bytes, place: str) -> Exchange:
    try:
        read = _Line.model_validate_json(line)
        output = _output(read)
        if read.body is None and not read.body_sha256:
            raise TrafficInvalid(f"{place}: body: it is missing")
    except ValidationError as error:
        raise TrafficInvalid(f"{place}: {_first(error)}") from None
    except MalformedLog as error:
        raise TrafficInvalid(f"{place}: items: {error}") from None
    return Exchange(
        workflow_type=read.workflow_type,
        workflow_id=read.workflow_id,
        kind=StageKind(read.kind),
        target=read.target,
        body=(read.body or "").encode(),
        output=output,
        stage=read.stage,
        agent_id=read.agent_id,
        at_ms=read.at_ms,
        done_ms=read.done_ms,
        outcome=read.outcome,
        reads=None if read.reads is None else tuple(read.reads),
        name=read.name,
        tenant=read.tenant,
        parent_id=read.parent_id,
        turn=read.turn,
        selections=tuple(Selection(one.point, tuple(one.chosen), one.ambiguous) for one in read.selections),
        prompt_tokens=read.prompt_tokens,
        output_tokens=read.output_tokens,
        execution_ms=read.execution_ms,
        failed=read.failed,
        body_sha256=read.body_sha256,
    )


def _output(read: _Line) -> Output | None:
    if read.items is not None:
        return output_of(item.encode() for item in read.items)
    match read.output:
        case None:
            return None
        case str() as text:
            return Output(text, finish="stop")
        case said:
            calls = tuple(ToolCall(call.name, call.arguments) for call in said.calls)
            return Output(said.text, calls, said.reasoning, said.finish)


def _output_json(output: Output) -> dict[str, Any]:
    return {
        "text": output.text,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in output.calls],
        "reasoning": output.reasoning,
        "finish": output.finish,
    }
