"""The fuzzer's oracles over its corpus, and over drawn bodies."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from dynbranch.bench.engine_view import view_digest
from dynbranch.bench.hostile_bodies import Bodies
from dynbranch.bench.name_pairs import draw_request, neighbour, rewrite
from fuzz.oracles import check_body, check_input, check_pair
from hypothesis import given, settings
from hypothesis import strategies as st

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


def test_the_corpus_is_there_and_small() -> None:
    assert len(CORPUS) >= 50
    assert max(path.stat().st_size for path in CORPUS) <= 8192


@pytest.mark.promise("C1.name")
@pytest.mark.parametrize("part", range(10))
def test_the_corpus_holds(part: int) -> None:
    for path in CORPUS[part::10]:
        try:
            check_input(path.read_bytes())
        except Exception as failure:
            raise AssertionError(f"tests/fuzz/corpus/{path.name}") from failure


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_broken_bodies(seed: int) -> None:
    bodies = Bodies(Random(seed))
    for _ in range(5):
        check_body(bodies.draw())


@pytest.mark.promise("C1.name")
@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_near_bodies(seed: int) -> None:
    rng = Random(seed)
    request = draw_request(rng)
    assert check_pair(rewrite(rng, request), rewrite(rng, request)), "a rewriting keeps the name"
    other, _ = neighbour(rng, request)
    check_pair(rewrite(rng, request), rewrite(rng, other))


def test_the_reference_tells_apart_and_together() -> None:
    def same(first: bytes, second: bytes) -> bool:
        return view_digest(first, plain_blocks=True) == view_digest(second, plain_blocks=True)

    assert same(b'{"temperature":1.0,"user":"a"}', b'{"user":"b","temperature":10e-1}')
    assert not same(b'{"seed":1}', b'{"seed":1.0}')
    assert not same(b'{"x":{"a":1,"b":2}}', b'{"x":{"b":2,"a":1}}')
    assert not same(b'{"temperature":1e400}', b'{"temperature":1e401}')
