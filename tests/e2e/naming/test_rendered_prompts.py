"""Names against a real engine: what it renders alike may share a name, what it renders otherwise may not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from dynbranch.bench.name_pairs import draw_request, rewrite
from dynbranch.bench.names import (
    PRINTS_EVERYTHING,
    Engine,
    compare,
    draw_pair,
    engine,
    name_of,
    probed_equivalences,
    run,
)
from dynbranch.naming.equivalences import CALL_IDS, SINGLE_TEXT_BLOCK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.e2e, pytest.mark.promise("C1.name", "I1"), pytest.mark.timeout(300)]

SEEDS = st.integers(0, 2**64 - 1)
SLOW_BUT_FINE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def own() -> Iterator[Engine]:
    with engine() as started:
        yield started


@pytest.fixture(scope="module")
def everything() -> Iterator[Engine]:
    with engine(PRINTS_EVERYTHING) as started:
        yield started


def test_equal_names_render_equal_prompts(own: Engine, everything: Engine) -> None:
    equivalences = probed_equivalences(own, everything)
    seen: Counter[tuple[bool, bool]] = Counter()

    @given(SEEDS)
    @settings(max_examples=400, deadline=None, suppress_health_check=SLOW_BUT_FINE)
    def check(seed: int) -> None:
        pair = draw_pair(Random(seed), equivalences)
        difference = compare(pair, own, everything)
        seen[pair.same_name, difference.any] += 1
        assert not (pair.same_name and difference.any)

    check()
    assert seen[True, False] >= 50
    assert seen[False, True] >= 50


def test_rewritings_are_rendered_alike(own: Engine, everything: Engine) -> None:
    """The control of the other tests: a rewriting really does not matter to an engine."""
    chance = Random(7)
    for _ in range(100):
        request = draw_request(chance)
        for asked in (own, everything):
            assert asked.render(rewrite(chance, request)) == asked.render(rewrite(chance, request))


def test_the_template_that_prints_everything_does(everything: Engine) -> None:
    function: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "b": 1, "a": 2}}
    call = {"id": "id1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "reasoning_content": "think", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "id1", "content": "42"},
        ],
        "tools": [{"type": "function", "function": function}],
        "chat_template_kwargs": {"kw": {"z": 1}},
    }
    prompt = everything.render(json.dumps(body).encode()).decode()
    for printed in ("think", "id1", "[kw]", "[call]", r"\"b\": 1, \"a\": 2"):
        assert printed in prompt


@pytest.mark.promise("C1.equivalence")
def test_the_probe_finds_the_single_text_block(own: Engine) -> None:
    assert SINGLE_TEXT_BLOCK in probed_equivalences(own)


@pytest.mark.promise("C1.equivalence")
def test_ids_of_calls_are_nothing_only_to_a_template_that_does_not_print_them(
    own: Engine, everything: Engine
) -> None:
    assert CALL_IDS in probed_equivalences(own)
    assert CALL_IDS not in probed_equivalences(everything)


@pytest.mark.promise("C1.equivalence")
def test_what_is_named_alike_whatever_its_ids_is_rendered_alike(own: Engine) -> None:
    equivalences = probed_equivalences(own)
    renamed = 0
    for seed in range(400):
        chance = Random(seed)
        request = draw_request(chance)
        body = json.loads(rewrite(chance, request))
        ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
        other = json.dumps(body)
        for number, one in enumerate(ids):
            other = other.replace(json.dumps(one), json.dumps(f"call_{number}Zk9"))
        first, second = json.dumps(body).encode(), other.encode()
        if ids and name_of(first, equivalences) == name_of(second, equivalences):
            renamed += 1
            assert own.render(first) == own.render(second)
    assert renamed >= 20


def test_the_bench_counts_what_it_says() -> None:
    progress: list[tuple[int, int]] = []
    result = run(50, 3, lambda done, total: progress.append((done, total)))
    zero = {"value": 0, "ci_low": 0, "ci_high": 0, "n": 50}
    assert result["figures"] == {"equal_name_different_prompt": zero, "different_name_same_request": zero}
    raw = result["raw"]
    assert raw["equal_names"] + raw["different_names"] == 50
    assert raw["equal_names_other_bytes"] > 0
    assert progress[-1] == (100, 100)
