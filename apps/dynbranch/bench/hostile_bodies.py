"""Hostile request bodies: real requests and near neighbours of them, broken in every way that is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from dynbranch.bench.name_pairs import draw_request, neighbour, rewrite
from dynbranch.demo.records import Question, RoutingRequest, questions, routing_requests
from dynbranch.demo.workloads import decision_schema, reading_messages

MODELS: Final = ("fake-model", "fake-alias")

TOKENS: Final = (
    rb"\ud800",
    rb"\ude00\ud83d",
    rb"\ud83d\ude00",
    rb"\u0000",
    rb"\u0022",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xff",
    b"\x00",
    b"\n",
    b"NaN",
    b"-Infinity",
    b"1e400",
    b"-0",
    b"0.0",
    b"1E-7",
    b"0e99999999999999999999",
    b"1.0000000000000000000001",
    b"9" * 400,
    b"01",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b'"',
    b"\\",
    b",",
    b":",
    b"[",
    b"{",
    b"}",
    b"]",
    b"[" * 300,
    b'{"a":' * 260,
    b"]" * 300,
    b"[" * 200 + b"]" * 200,
    b"/**/",
    b',"temperature":0',
    b',"temperature":1',
    b',"model":"fake-alias"',
    b',"stream":true',
    b',"stream":1',
    b',"stream_options":{"include_usage":false}',
    b',"n":0',
    b',"logprobs":true',
    b',"user":"\\ud800"',
    b',"":{"":[{}]}',
    b',"messages":[]',
    b'{"type":"text","text":"a"},',
    b'"cache_control":{"type":"ephemeral"},',
)


class Bodies:
    """Draws bodies. ``real`` are what the demonstration's harness sends."""

    def __init__(self, rng: Random, more: Sequence[bytes] = ()) -> None:
        self._rng = rng
        self._seeds = [*real_requests(), *more]
        self._recent: list[bytes] = []

    def draw(self) -> bytes:
        rng = self._rng
        kind = rng.random()
        if kind < 0.15:
            body = rng.choice(self._seeds)
        elif kind < 0.45:
            body = self._drawn()
        elif self._recent and kind < 0.75:
            body = rng.choice(self._recent)
        else:
            body = rng.choice(self._seeds)
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 5))):
            body = rng.choice(_MUTATIONS)(rng, body)
        self._recent.append(body)
        if len(self._recent) > 200:
            self._recent[rng.randrange(200)] = self._recent.pop()
        return body

    def _drawn(self) -> bytes:
        request = draw_request(self._rng)
        if self._rng.random() < 0.5:
            request, _ = neighbour(self._rng, request)
        request["model"] = self._rng.choice(MODELS)
        if self._rng.random() < 0.9:
            request["temperature"] = 0
        return rewrite(self._rng, request)


def real_requests(records: int = 60) -> list[bytes]:
    """What the demonstration's harness sends for its first records, but for the model."""
    requests = [_deciding(request) for request in routing_requests()[:records]]
    requests += [_reading(question) for question in questions()[:records]]
    return [json.dumps(request).encode() for request in requests]


def _deciding(request: RoutingRequest) -> dict[str, Any]:
    names = [function.name for function in request.functions]
    return {
        "model": MODELS[0],
        "messages": [
            {"role": "system", "content": "Route to one of: " + ", ".join(names)},
            {"role": "user", "content": request.user},
        ],
        "temperature": 0,
        "max_tokens": 64,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "decision", "schema": decision_schema(names), "strict": True},
        },
        "tools": [{"type": "function", "function": function.as_json()} for function in request.functions[:2]],
    }


def _reading(question: Question) -> dict[str, Any]:
    texts = [json.dumps({"id": passage}) for passage in question.gold]
    messages = reading_messages(question.question, question.gold, texts)
    return {"model": MODELS[1], "messages": messages, "temperature": 0, "max_tokens": 16, "stream": True}


def _flip(rng: Random, body: bytes) -> bytes:
    if not body:
        return body
    at = rng.randrange(len(body))
    return body[:at] + bytes((body[at] ^ 1 << rng.randrange(8),)) + body[at + 1 :]


def _insert(rng: Random, body: bytes) -> bytes:
    at = rng.randint(0, len(body))
    return body[:at] + rng.choice(TOKENS) + body[at:]


def _insert_between(rng: Random, body: bytes) -> bytes:
    """Where a value or a member may stand."""
    places = [at for at, byte in enumerate(body) if byte in b'{}[],:"']
    at = rng.choice(places) + rng.randint(0, 1) if places else 0
    return body[:at] + rng.choice(TOKENS) + body[at:]


def _drop(rng: Random, body: bytes) -> bytes:
    start, size = rng.randint(0, len(body)), rng.choice((1, 1, 2, 10, 100))
    return body[:start] + body[start + size :]


def _repeat(rng: Random, body: bytes) -> bytes:
    start, size = rng.randint(0, len(body)), rng.choice((1, 10, 100, 1000))
    return body[: start + size] + body[start:]


def _replace_number(rng: Random, body: bytes) -> bytes:
    places = [at for at, byte in enumerate(body) if byte in b"0123456789"]
    if not places:
        return body
    at = rng.choice(places)
    return body[:at] + rng.choice(TOKENS[13:22]) + body[at + 1 :]


def _cut(rng: Random, body: bytes) -> bytes:
    return body[: rng.randint(0, len(body))]


def _recode(rng: Random, body: bytes) -> bytes:
    try:
        return body.decode().encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig")))
    except UnicodeError:
        return body


def _join(rng: Random, body: bytes) -> bytes:
    return body + rng.choice((b"", b"\n", b"\x00", b",")) + rng.choice((body, b"{}", b"x"))


def _blow_up(rng: Random, body: bytes) -> bytes:
    at = body.find(b'"content": "') + 12
    return (
        body[:at] + rng.choice((b"x", rb"\n", b",", rb"\ud83d\ude00")) * rng.choice((100, 10_000)) + body[at:]
    )


_MUTATIONS: Final[tuple[Callable[[Random, bytes], bytes], ...]] = (
    _flip,
    _insert,
    _insert_between,
    _insert_between,
    _drop,
    _repeat,
    _replace_number,
    _cut,
    _recode,
    _join,
    _blow_up,
)
