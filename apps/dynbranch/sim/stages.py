"""What is asked for and what comes of it. An output says in plain text which versions it was made of, so that
a checker needs no model of the engine: it reads the answer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import Enum

from dynbranch.domain.engine import WireProtocol
from dynbranch.domain.ids import Digest, Name, RecordId
from dynbranch.domain.reuse import ReadScope
from dynbranch.naming.chunks import compact, encode_payload

Seen = tuple[tuple[RecordId, int], ...]
"""Records and the version of each, in record order. Versions count from 0."""

SOURCES = ("notes", "plans")
KEYS = ("a", "b", "c")
RECORDS = tuple(RecordId(f"{source}/{key}") for source in SOURCES for key in KEYS)


class Kind(Enum):
    MODEL = "model"
    """Reads nothing."""
    TOOL = "tool"
    """Its backend reads records while it runs."""
    DECLARED = "declared"
    """The harness read records before, and says so."""
    CHAIN = "chain"
    """A model stage whose request holds a tool's output."""


@dataclass(frozen=True, slots=True)
class Stage:
    """``tells``: the backend says what it read. ``query``: it reads the whole source."""

    key: str
    kind: Kind
    records: tuple[RecordId, ...] = ()
    tells: bool = True
    query: bool = False

    @property
    def protocol(self) -> WireProtocol:
        return WireProtocol.TOOL if self.kind is Kind.TOOL else WireProtocol.CHAT_COMPLETIONS


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request of a harness. ``declared`` is what the harness read itself, which the name does not
    cover.
    """

    stage: Stage
    name: Name
    scope: ReadScope
    text: str = ""
    inputs: tuple[Digest, ...] = ()
    declared: Seen = ()


@dataclass(frozen=True, slots=True)
class Output:
    """``text`` is what the request was built from beside its stage. ``items`` are as the engine sends
    them.
    """

    stage: Stage
    text: str
    seen: Seen
    items: tuple[bytes, ...]
    payload: bytes


class Workload:
    """The stages of a world, and every output that an engine made in it."""

    def __init__(self, names: int) -> None:
        numbers = range(names)
        one = [RECORDS[number % len(RECORDS)] for number in range(2 * names)]
        self.models = [Stage(f"model{n}", Kind.MODEL) for n in numbers]
        self.tools = [Stage(f"get{n}", Kind.TOOL, (one[n],)) for n in numbers]
        self.tools += [Stage(f"join{n}", Kind.TOOL, (one[n], one[n + 1])) for n in numbers]
        self.tools += [Stage(f"silent{n}", Kind.TOOL, (one[n],), tells=False) for n in numbers]
        self.tools += [Stage(f"search{n}", Kind.TOOL, RECORDS[:3], query=True) for n in numbers]
        self.declared = [Stage(f"declared{n}", Kind.DECLARED, (one[n + 1],)) for n in numbers]
        self.chains = [Stage(f"chain{n}", Kind.CHAIN) for n in numbers]
        self._outputs: dict[tuple[str, str, Seen], Output] = {}
        self._by_items: dict[tuple[bytes, ...], Output] = {}
        self._by_payload: dict[bytes, Output] = {}
        self._names: dict[tuple[str, str], Name] = {}

    def name(self, stage: Stage, text: str) -> Name:
        key = (stage.key, text)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = Name(hashlib.sha256(f"{stage.key}\n{text}".encode()).digest())
        return name

    def output(self, stage: Stage, text: str, seen: Seen) -> Output:
        """What an engine gives: a pure function of the request and of the versions that it saw."""
        key = (stage.key, text, seen)
        output = self._outputs.get(key)
        if output is None:
            output = self._outputs[key] = _made(stage, text, seen)
            self._by_items[output.items] = self._by_items[_kept(output)] = output
            self._by_payload[output.payload] = output
        return output

    def of_items(self, items: tuple[bytes, ...]) -> Output | None:
        return self._by_items.get(items)

    def of_payload(self, payload: bytes) -> Output | None:
        return self._by_payload.get(payload)


def _made(stage: Stage, text: str, seen: Seen) -> Output:
    answer = " ".join(
        [stage.key, hashlib.sha256(text.encode()).hexdigest()[:8], *(f"{r}={v}" for r, v in seen)]
    )
    if stage.protocol is WireProtocol.TOOL:
        items: tuple[bytes, ...] = (json.dumps({"answer": answer}).encode(),)
        return Output(stage, text, seen, items, encode_payload(items))
    items = _chunks(answer)
    return Output(stage, text, seen, items, encode_payload(compact(items)))


def _kept(output: Output) -> tuple[bytes, ...]:
    return output.items if output.stage.protocol is WireProtocol.TOOL else compact(output.items)


def _chunks(answer: str) -> tuple[bytes, ...]:
    half = len(answer) // 2
    deltas: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": answer[:half]}, None),
        ({"content": answer[half:]}, None),
        ({}, "stop"),
    ]
    chunks: list[dict[str, object]] = [
        {
            "id": "sim",
            "object": "chat.completion.chunk",
            "model": "sim",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        for delta, reason in deltas
    ]
    return tuple(json.dumps(chunk, separators=(",", ":")).encode() for chunk in chunks)


def text_of(output: Output) -> str:
    """The output as a later request would hold it."""
    return output.items[0].decode()


def digest_of(output: Output) -> Digest:
    """Of a tool's result body."""
    return Digest(hashlib.sha256(output.items[0]).digest())
