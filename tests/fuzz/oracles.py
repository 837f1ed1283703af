"""What must hold of naming for any bytes at all. An input is one body, or two with ``SEPARATOR`` between."""

from __future__ import annotations

from typing import Any

from dynbranch.bench.engine_view import NotStrict, engine_view, strict
from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import Document, emit, parse_body
from dynbranch.naming.equivalences import SINGLE_TEXT_BLOCK
from dynbranch.naming.normalise import NormalisedRequest, normalise_chat, normalise_tool

SEPARATOR = b"\x00\n"
_EQUIVALENCES = (frozenset[str](), frozenset({SINGLE_TEXT_BLOCK}))


def check_input(data: bytes) -> None:
    """Raises AssertionError, or whatever naming should not raise."""
    bodies = data.split(SEPARATOR, 1)
    for body in bodies:
        check_body(body)
    if len(bodies) == 2:
        check_pair(*bodies)


def check_body(body: bytes) -> None:
    document = parsed(body)
    if document is None:
        return
    assert emit(parse_body(emit(document.value).encode()).value) == emit(document.value)
    assert normalise_tool("t", document).engine_body == body
    for equivalences in _EQUIVALENCES:
        request = normalised(document, equivalences)
        if request is not None:
            check_request(request, document, equivalences)


def parsed(body: bytes) -> Document | None:
    """Refused by both readers, or by neither."""
    try:
        strict(body)
        is_strict = True
    except NotStrict:
        is_strict = False
    try:
        document = parse_body(body)
    except InvalidRequest as refused:
        assert not is_strict, f"refused for nothing: {refused}"
        assert refused.message and len(refused.message) < 500
        return None
    assert is_strict, "two readers disagree"
    return document


def normalised(document: Document, equivalences: frozenset[str]) -> NormalisedRequest | None:
    try:
        return normalise_chat(document, equivalences)
    except InvalidRequest as refused:
        assert refused.message and len(refused.message) < 500
        return None


def check_request(request: NormalisedRequest, document: Document, equivalences: frozenset[str]) -> None:
    assert len(request.canonical) <= 4 * len(document.source) + 1000
    again = normalise_chat(parse_body(emit(document.value).encode()), equivalences)
    assert (again.canonical, again.reuse) == (request.canonical, request.reuse), "unstable under re-emission"
    assert again.input_digests == request.input_digests
    sent: Any = parse_body(request.engine_body).value
    asked: Any = document.value
    assert sent["stream"] is True and emit(sent["stream_options"]["include_usage"]) == "true"
    for key in asked.keys() - {"stream", "stream_options"}:
        assert emit(sent[key]) == emit(asked[key]), f"the engine is sent another {key}"
    assert list(sent)[: len(asked)] == list(asked)
    assert [field.path for field in request.fields]
    engine_request = normalise_chat(parse_body(request.engine_body), equivalences)
    assert engine_request.canonical == request.canonical, "the engine is sent a request of another name"


def check_pair(first: bytes, second: bytes) -> bool:
    """One name only for what an engine must treat alike. Returns whether the names are equal."""
    documents = parsed(first), parsed(second)
    if documents[0] is None or documents[1] is None:
        return False
    equal = False
    for equivalences in _EQUIVALENCES:
        left, right = (normalised(document, equivalences) for document in documents if document is not None)
        if left is None or right is None or left.canonical != right.canonical:
            continue
        equal = True
        plain = SINGLE_TEXT_BLOCK in equivalences
        views = [
            engine_view(strict(body), plain_blocks=plain, models=frozenset()) for body in (first, second)
        ]
        assert views[0] == views[1], "equal names for requests that an engine can tell apart"
        assert left.reuse.reusable == right.reuse.reusable
    return equal
