"""The requests that the benchmark of normalising makes, and that it measures what it says."""

from __future__ import annotations

import json

import pytest
from dynbranch.bench import normalise
from dynbranch.bench.normalise import SIZES, SPOKEN, Size, Spoken, conversation_of


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
@pytest.mark.parametrize("one", SPOKEN, ids=lambda one: one.name)
def test_requests_are_as_long_as_they_say(size: Size, one: Spoken) -> None:
    body = json.dumps(one.body(conversation_of(size, one))).encode()
    assert abs(len(body) - size.bytes) <= size.bytes // 20
    document = one.dialect.read(body).value
    assert isinstance(document, dict) and isinstance(document["messages"], list)
    answers = [message for message in document["messages"] if message["role"] == "assistant"]  # type: ignore[index, call-overload]
    assert len(answers) == size.turns
    assert len(document["tools"]) == size.tools  # type: ignore[arg-type]


def test_every_protocol_is_measured_at_every_size() -> None:
    measured = normalise.measure(lambda *_: None, quick=True)
    for size in SIZES:
        each = [measured.figures[f"ms_{size.name}_{one.name}"].value for one in SPOKEN]
        assert measured.figures[f"ms_{size.name}"].value == max(each) > 0
