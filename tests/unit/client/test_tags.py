"""What is said of calls, and how it stands in headers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import dynbranch.client
import pytest
from dynbranch.domain.ids import RecordId, Version
from dynbranch.domain.reuse import DeclaredRead
from dynbranch.gateway.core.request_headers import parse_identity, parse_read_scope
from dynbranch.rendering.schema import _NAME
from dynbranch.tagging.tags import (
    MAX_STAGE_CHARACTERS,
    MAX_TAG_CHARACTERS,
    Tags,
    current,
    driven,
    next_turn,
    stage_text,
    tag_text,
    tell,
    telling,
    told_here,
)
from hypothesis import given
from hypothesis import strategies as st

LIB = Path(__file__).resolve().parents[3] / "lib"
NOTHING = Tags()
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


def said() -> Tags:
    return current(NOTHING)


# -- headers -------------------------------------------------------------------------------------------------


@given(st.builds(Tags, *(st.text(max_size=300),) * 4))
def test_a_gateway_takes_any_text(tags: Tags) -> None:
    identity = parse_identity(dict(tags.headers()), "t")
    assert (identity.workflow_id == "") is (tags.workflow.strip() == "")
    assert len(identity.agent_id) <= MAX_TAG_CHARACTERS


def test_what_is_printable_is_told_as_it_is() -> None:
    assert tag_text("a 50 % job: #1/é") == "a 50 % job: #1/%C3%A9"


@given(st.text(min_size=201), st.text(min_size=201))
def test_long_texts_stay_apart(one: str, other: str) -> None:
    assert (tag_text(one) == tag_text(other)) is (one.strip() == other.strip()) or "?" in tag_text(one)


@given(st.text(max_size=100))
def test_a_node_names_a_stage_of_a_template(name: str) -> None:
    assert _NAME.fullmatch(stage_text(name)) and len(stage_text(name)) <= MAX_STAGE_CHARACTERS


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z]{1,5}", fullmatch=True),
            st.text(
                st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20
            ),
            st.none() | st.tuples(st.integers(0, 9), st.integers(0, 10**6)),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda read: read[:2],
    )
)
def test_reads_come_out_as_they_went_in(reads: list[tuple[str, str, tuple[int, int] | None]]) -> None:
    records = [
        f"{source}/{key}" if version is None else (f"{source}/{key}", f"{version[0]}.{version[1]}")
        for source, key, version in reads
    ]
    with dynbranch.client.reads(*records):
        headers = dict(said().headers())
    expected = {
        DeclaredRead(RecordId(f"{source}/{key}"), Version(*version) if version else None)
        for source, key, version in reads
    }
    assert set(parse_read_scope(headers).declared) == expected


@pytest.mark.parametrize("read", ["passages", "/1", "passages/", ("passages/1", "3"), ("passages/1", "new")])
def test_what_is_no_read_is_refused_where_it_is_said(read: str | tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="is"), dynbranch.client.reads(read):
        pass


def test_a_workflow_has_a_type() -> None:
    with pytest.raises(ValueError, match="type"), dynbranch.client.workflow(" "):
        pass


# -- blocks --------------------------------------------------------------------------------------------------


def test_blocks_nest_and_end() -> None:
    with dynbranch.client.workflow("reviews", "w1", agent="main") as run:
        assert (run.type, run.id) == ("reviews", "w1")
        with dynbranch.client.agent("critic"), dynbranch.client.stage("judge"), dynbranch.client.reads("p/1"):
            with dynbranch.client.reads("p/2", "p/1"):
                assert said() == Tags("reviews", "w1", "critic", "judge", ("p/1", "p/2"), "main")
            # Another workflow begins with nothing of the one around it.
            with dynbranch.client.workflow("other") as inner:
                assert said() == Tags("other", inner.id)
        assert said() == Tags("reviews", "w1", "main")
    assert said() == NOTHING


def test_an_agent_was_started_by_the_one_around_it() -> None:
    with dynbranch.client.agent("lead"):
        with dynbranch.client.agent("researcher"):
            assert dict(said().headers())["x-dynbranch-parent"] == "lead"
        with dynbranch.client.agent("lead"):
            assert said().parent == ""
        with telling(told_here(Tags(agent="told"))):
            # What is said is an agent and its parent together.
            assert said() == Tags(agent="lead")
    with telling(told_here(Tags(agent="lead"))), telling(told_here(Tags(agent="told"))):
        assert said() == Tags(agent="told", parent="lead")


def test_workflows_without_an_id_have_their_own() -> None:
    with dynbranch.client.workflow("a") as one, dynbranch.client.workflow("a") as other:
        assert one.id != other.id


async def test_tasks_say_their_own() -> None:
    together = asyncio.Barrier(3)

    async def work(name: str) -> Tags:
        with dynbranch.client.agent(name):
            await together.wait()
            return said()

    with dynbranch.client.workflow("t", "w"):
        found = await asyncio.gather(*(work(name) for name in "abc"))
        assert [tags.agent for tags in found] == ["a", "b", "c"]
        assert {tags.workflow for tags in found} == {"w"}
        assert (await asyncio.to_thread(said)).workflow == "w"


def test_threads_are_carried_what_is_said() -> None:
    with ThreadPoolExecutor(2) as pool:
        with dynbranch.client.workflow("t", "w"):
            ask = dynbranch.client.carried(said)
            assert [future.result().workflow for future in [pool.submit(ask) for _ in range(4)]] == ["w"] * 4
            assert pool.submit(said).result() == NOTHING
        # It keeps what was said where it was made.
        assert pool.submit(ask).result().workflow == "w"


# -- frameworks ----------------------------------------------------------------------------------------------


def test_a_person_stands_before_a_framework_and_that_before_what_was_attached() -> None:
    with telling(told_here(Tags("told", "told", "told"))):
        assert current(Tags("attached", agent="attached", stage="attached")) == Tags(
            "told", "told", "told", "attached"
        )
        with dynbranch.client.agent("said"):
            assert said() == Tags("told", "told", "said")


def test_what_has_ended_is_told_no_more_in_whatever_order_it_ends() -> None:
    with ExitStack() as stack:
        # Whatever the test leaves in the context goes with it.
        stack.enter_context(telling(told_here(NOTHING)))
        run = tell(Tags("t", "w"))
        call = tell(Tags(agent="a"))
        assert said() == Tags("t", "w", "a")
        call.end()
        assert said() == Tags("t", "w")
        call = tell(Tags(agent="b"))
        run.end()
        assert said().agent == "b"
        call.end()
        assert said() == NOTHING


async def test_a_stream_tells_only_while_it_makes_an_item() -> None:
    inside = []
    closed = False

    async def items() -> AsyncGenerator[int]:
        nonlocal closed
        try:
            for number in range(3):
                inside.append(said().agent)
                yield number
        finally:
            closed = True

    stream = driven(items(), told_here(Tags(agent="a")))
    async for number in stream:
        assert said() == NOTHING
        if number == 1:
            break
    await stream.aclose()
    assert inside == ["a", "a"] and closed


def test_turns_are_counted_in_a_run() -> None:
    assert [next_turn("a"), next_turn("a")] == [1, 1]
    with dynbranch.client.workflow("t"):
        assert [next_turn("a"), next_turn("b"), next_turn("a")] == [1, 1, 2]
        with telling(told_here(NOTHING)):
            assert [next_turn("a"), next_turn("a")] == [1, 2]
    with dynbranch.client.workflow("t"):
        assert next_turn("a") == 1


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = "import dynbranch.client, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        (sys.executable, "-S", "-E", "-c", f"import sys; sys.path.insert(0, {str(LIB)!r}); {code}"),
        capture_output=True,
        text=True,
        check=True,
    )
    foreign = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"dynbranch", "__main__"}
    assert not foreign
