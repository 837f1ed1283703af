"""One answer, however it is asked for and wherever it comes from.

Each case is a request of one protocol and an answer that the stub engine streams for it. The request is sent
as a plain one and as a stream: executed, again from its record, and once more after a fill has run ahead of
it. All of these answers have to be one, but for ids, times, and how counts of tokens say that they come from
a record.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dynbranch.bench import fidelity_reading as reading
from dynbranch.bench.corpus import chat, messages, responses
from dynbranch.bench.corpus.answers import TOLD, items_of
from dynbranch.bench.corpus.shapes import Asked, Object, Told
from dynbranch.bench.fidelity_world import Answer, World, running
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.demo.measures import exact, share
from dynbranch.gateway.protocols.anthropic.dialect import MessagesDialect
from dynbranch.gateway.protocols.chat import ChatDialect
from dynbranch.gateway.protocols.dialect import Dialect
from dynbranch.gateway.protocols.responses.dialect import ResponsesDialect
from dynbranch.stub_engine.settings import StubSettings

Read = Callable[[bytes], reading.Read]

_FEWEST_REUSED: Final = 30
"""Cases of each protocol that have to come from a record, and from a fill: others refer to what may change
elsewhere, or end in what is never stored."""

_SEED: Final = 11
_SHOWN_DIFFERENCES: Final = 20
_SHOWN_CHARACTERS: Final = 400
_ANEW: Final = {"cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class Protocol:
    """``stops``: its field for stop sequences; ``streams``: what asks for a stream."""

    name: str
    path: str
    dialect: Dialect
    corpus: list[Asked]
    plain: Read
    streamed: Read
    frame: Mapping[str, Any] = field(default_factory=dict)
    stops: str = "stop"
    streams: Mapping[str, Any] = field(default_factory=lambda: {"stream": True})


PROTOCOLS: Final = (
    Protocol(
        "chat completions",
        "/v1/chat/completions",
        ChatDialect(),
        chat.ASKED,
        reading.chat_plain,
        reading.chat_streamed,
        streams={"stream": True, "stream_options": {"include_usage": True}},
    ),
    Protocol(
        "messages",
        "/v1/messages",
        MessagesDialect(),
        messages.ASKED,
        reading.messages_plain,
        reading.messages_streamed,
        frame={"max_tokens": 1000},
        stops="stop_sequences",
    ),
    Protocol(
        "responses",
        "/v1/responses",
        ResponsesDialect(),
        responses.ASKED,
        reading.responses_plain,
        reading.responses_streamed,
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    protocol: Protocol
    asked: Asked
    told: Told
    number: int

    @property
    def name(self) -> str:
        return f"{self.protocol.name}: {self.asked.name} / {self.told.name}"

    def body(self, way: int, *, stream: bool) -> Object:
        """Greedy, and of another name for every ``way``."""
        body: Object = {"model": StubSettings().model, **self.protocol.frame, **self.asked.asks}
        body.pop("stream", None)
        body.pop("stream_options", None)
        if self.told.stops:
            body[self.protocol.stops] = list(self.told.stops)
        body |= {"temperature": 0, "seed": self.number * 10 + way}
        return {**body, **self.protocol.streams} if stream else body


@dataclass(slots=True)
class Seen:
    """What came of one case. ``answers`` are as clients read them, by how they were asked for."""

    case: Case
    answers: dict[str, reading.Read] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)

    @property
    def stream_equals_plain(self) -> bool:
        return all(self.answers[f"{way} stream"] == self.answers[way] for way in ("miss", "hit", "promoted"))

    @property
    def alike(self) -> bool:
        return all(answer == self.answers["miss"] for answer in self.answers.values())

    def reused_as(self, outcome: str) -> bool:
        return self.outcomes[outcome] == outcome and self.outcomes[f"{outcome} stream"] == outcome

    def difference(self) -> dict[str, str]:
        first = self.answers["miss"]
        way, other = next((way, one) for way, one in self.answers.items() if one != first)
        differ = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        shown = [str({key: one.get(key) for key in differ})[:_SHOWN_CHARACTERS] for one in (first, other)]
        return {"case": self.case.name, "way": way, "miss": shown[0], "other": shown[1]}


def cases() -> Iterator[Case]:
    """Every request and every answer of the corpora at least once in each protocol."""
    number = 0
    for protocol in PROTOCOLS:
        for turn in range(max(len(protocol.corpus), len(TOLD))):
            number += 1
            yield Case(protocol, protocol.corpus[turn % len(protocol.corpus)], TOLD[turn % len(TOLD)], number)


def measure(tell: Tell, *, quick: bool = False) -> Measured:
    """``quick`` runs a tenth of the cases, drawn by a seed, of each protocol its share."""
    seen = asyncio.run(_run(_tenth() if quick else list(cases()), tell))
    return _measured(seen, quick=quick)


def _tenth() -> list[Case]:
    chance = random.Random(_SEED)
    every = list(cases())
    own = [[case for case in every if case.protocol is protocol] for protocol in PROTOCOLS]
    drawn = [case for of_one in own for case in chance.sample(of_one, k=-(-len(of_one) // 10))]
    return sorted(drawn, key=lambda case: case.number)


async def _run(chosen: list[Case], tell: Tell) -> list[Seen]:
    seen: list[Seen] = []
    async with running() as world:
        for number, case in enumerate(chosen):
            tell(case.protocol.name, number, len(chosen))
            seen.append(await _one(world, case))
    tell("done", len(chosen), len(chosen))
    return seen


async def _one(world: World, case: Case) -> Seen:
    world.says(items_of(case.told))
    seen = Seen(case)
    path = case.protocol.path

    async def ask(kind: str, way: int, *, stream: bool, headers: Mapping[str, str] | None = None) -> None:
        answer = await world.ask(path, case.body(way, stream=stream), headers)
        label = f"{kind} stream" if stream else kind
        seen.outcomes[label] = answer.outcome
        seen.answers[label] = _read(case, answer, stream=stream)

    for stream in (False, True):
        await ask("miss", 0, stream=stream, headers=_ANEW)
    for stream in (False, True):
        await ask("hit", 0, stream=stream)
    for stream in (False, True):
        way = 1 + stream
        body = case.body(way, stream=stream)
        document = case.protocol.dialect.read(json.dumps(case.body(way, stream=False)).encode())
        await world.run_ahead(path, body, document)
        await ask("promoted", way, stream=stream)
    return seen


def _read(case: Case, answer: Answer, *, stream: bool) -> reading.Read:
    """What can not be read is an answer of its own, equal to no other."""
    if answer.status != 200:
        raise BenchFailed(f"{case.name}: {answer.status} {answer.body[:300]!r}")
    read = case.protocol.streamed if stream else case.protocol.plain
    try:
        found = read(answer.body)
    except (reading.Unreadable, ValueError, LookupError, TypeError, AttributeError) as problem:
        return {
            "unreadable": f"{type(problem).__name__}: {problem}",
            "body": answer.body.decode("utf-8", "replace"),
        }
    return found


def _measured(seen: list[Seen], *, quick: bool) -> Measured:
    n = len(seen)
    reused = {
        outcome: Counter(one.case.protocol.name for one in seen if one.reused_as(outcome))
        for outcome in ("hit", "promoted")
    }
    different = [one for one in seen if not one.alike]
    failures = [f"{one.case.name}: the answers are not one" for one in different[:_SHOWN_DIFFERENCES]]
    fewest = 1 if quick else _FEWEST_REUSED
    for outcome, counts in reused.items():
        failures += [
            f"{protocol.name}: only {counts[protocol.name]} cases were {outcome}"
            for protocol in PROTOCOLS
            if counts[protocol.name] < fewest
        ]
    figures = {
        "cases": exact(n, n),
        "stream_equals_plain_share": share(sum(one.stream_equals_plain for one in seen), n),
        "hit_promotion_and_miss_alike_share": share(sum(one.alike for one in seen), n),
        "cases_hit": exact(sum(reused["hit"].values()), n),
        "cases_promoted": exact(sum(reused["promoted"].values()), n),
    }
    raw = {
        "cases_by_protocol": Counter(one.case.protocol.name for one in seen),
        "reused_by_protocol": reused,
        "requests": sum(len(one.answers) for one in seen),
        "not_reused": [one.case.name for one in seen if not one.reused_as("hit")],
        "differences": [one.difference() for one in different[:_SHOWN_DIFFERENCES]],
    }
    return Measured(figures, raw, tuple(failures))
