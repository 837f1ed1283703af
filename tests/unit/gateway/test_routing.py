"""Where requests go, and what is believed to be held where."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dynbranch.gateway.core.prompt_prefix import NO_PREFIX, PromptPrefix, prefix_of
from dynbranch.gateway.core.routing import (
    SPREAD,
    Candidate,
    Holdings,
    Router,
    RoutingPolicy,
    Whereabouts,
    bound,
    open_ones,
)
from hypothesis import given
from hypothesis import strategies as st

ENGINES = ("a:1", "b:1", "c:1", "d:1")
ROOM = 10_000


def prompt(family: str, *messages: str) -> PromptPrefix:
    return prefix_of([f"the instructions of {family}. " * 60], messages)


def calm(slots: int = 8) -> list[Candidate]:
    return [Candidate(address, 0, slots) for address in ENGINES]


def busy(*counts: int, slots: int = 8) -> list[Candidate]:
    return [Candidate(address, count, slots) for address, count in zip(ENGINES, counts, strict=False)]


def routed(router: Router, candidates: list[Candidate], prefix: PromptPrefix) -> str:
    address = router.choose(candidates, prefix)
    assert address is not None
    router.sent(address, prefix)
    return address


# -- affinity ----------------------------------------------------------------------------------------------


def test_a_conversation_stays_where_it_began() -> None:
    router = Router(room_blocks=ROOM)
    turns = [f"turn {turn} " * 50 for turn in range(6)]
    places = {routed(router, calm(), prompt("f", *turns[: n + 1])) for n in range(6)}
    assert len(places) == 1


def test_the_longest_beginning_wins_over_a_shorter_one() -> None:
    router = Router(room_blocks=ROOM)
    router.sent("a:1", prompt("f", "x" * 2000))
    router.sent("b:1", prompt("f", "x" * 2000, "y" * 2000))
    assert router.choose(calm(), prompt("f", "x" * 2000, "y" * 2000, "z" * 2000)) == "b:1"
    assert router.choose(calm()[:1] + calm()[2:], prompt("f", "x" * 2000, "y" * 2000)) == "a:1"


def test_a_beginning_that_is_hardly_any_of_the_prompt_binds_nobody() -> None:
    router = Router(room_blocks=ROOM)
    router.sent("a:1", prefix_of(["s" * 300], ["x"]))
    others = {router.choose(calm(), prefix_of(["s" * 300, f"tools {n}"], ["y" * 9000])) for n in range(40)}
    assert len(others) > 1


def test_other_scopes_hold_nothing_for_one() -> None:
    one, other = prefix_of(["scope a", "s" * 600], ["x"]), prefix_of(["scope b", "s" * 600], ["x"])
    assert not set(one.blocks) & set(other.blocks) and one.family != other.family


def test_new_families_spread() -> None:
    router = Router(room_blocks=ROOM)
    places = Counter(routed(router, calm(), prompt(f"family {n}", "hello")) for n in range(200))
    assert set(places) == set(ENGINES) and max(places.values()) < 100


@given(st.text(max_size=30), st.permutations(ENGINES))
def test_gateways_that_know_nothing_agree(family: str, order: list[str]) -> None:
    one, other = Router(room_blocks=ROOM), Router(room_blocks=ROOM)
    prefix = prompt(family, "hello")
    assert one.choose(calm(), prefix) == other.choose([Candidate(a, 0, 8) for a in order], prefix)


@given(st.text(max_size=30))
def test_only_the_families_of_an_engine_that_goes_move(family: str) -> None:
    router, prefix = Router(room_blocks=ROOM), prompt(family, "hello")
    before = router.choose(calm(), prefix)
    for gone in ENGINES:
        left = [c for c in calm() if c.address != gone]
        after = router.choose(left, prefix)
        assert after != gone and (gone == before or after == before)


def test_what_a_restarted_engine_held_is_forgotten() -> None:
    router, prefix = Router(room_blocks=ROOM), prompt("f", "x" * 2000)
    away = next(address for address in ENGINES if address != router.choose(calm(), prefix))
    router.sent(away, prefix)
    assert router.choose(calm(), prefix) == away
    router.forget(away)
    assert router.choose(calm(), prefix) != away


def test_a_conversation_that_another_gateway_began_stays_there() -> None:
    one, other = Router(room_blocks=ROOM), Router(room_blocks=ROOM)
    for router in (one, other):
        for address in ENGINES:
            router.sent(address, prompt("f", "another conversation " * 20))
    first = prompt("f", "x" * 2000)
    away = next(address for address in ENGINES if address != other.choose(calm(), first))
    one.sent(away, first)
    for router in (one, other):
        router.heard(away, [first.hint])
    later = prompt("f", "x" * 2000, "y" * 2000)
    assert one.choose(calm(), later) == other.choose(calm(), later) == away
    other.forget(away)
    assert other.choose(calm(), first) != away


def test_a_family_that_another_gateway_placed_stays_there() -> None:
    router = Router(room_blocks=ROOM)
    away = next(address for address in ENGINES if address != router.choose(calm(), prompt("f", "1")))
    router.heard(away, [prompt("f", "1").hint, b"", b"not one of ours"])
    assert router.choose(calm(), prompt("f", "2")) == away
    assert router.choose([c for c in calm() if c.address != away], prompt("f", "2")) not in (None, away)


def test_old_news_of_own_prompts_changes_nothing() -> None:
    router, prefix = Router(room_blocks=ROOM), prompt("f", "x" * 2000)
    router.sent("a:1", prefix)
    router.heard("a:1", [prefix.hint])
    assert router.choose(calm()[1:], prefix) != "a:1"
    router.sent("b:1", prompt("f", "x" * 2000, "y" * 2000))
    assert router.choose(calm(), prompt("f", "x" * 2000, "y" * 2000)) == "b:1"


@given(st.lists(st.tuples(st.sampled_from(ENGINES), st.integers(0, 200)), max_size=60))
def test_whereabouts_are_bounded(heard: list[tuple[str, int]]) -> None:
    where = Whereabouts(max_conversations=20, max_families=5)
    for address, number in heard:
        where.heard(address, b"%d" % (number % 9), b"%d" % number)
        where.sent(address, b"own %d" % number)
    assert len(where.conversations) <= 20 >= len(where.own) and len(where.families) <= 5


# -- load --------------------------------------------------------------------------------------------------

COUNTS = st.lists(st.integers(0, 60), min_size=4, max_size=4)
SLOTS = st.integers(0, 256)


@given(COUNTS, SLOTS, st.sampled_from(ENGINES))
def test_nobody_is_sent_more_than_the_bound(counts: list[int], slots: int, holder: str) -> None:
    router, prefix = Router(room_blocks=ROOM), prompt("f", "hello")
    router.sent(holder, prefix)
    candidates = busy(*counts, slots=slots)
    chosen = next(c for c in candidates if c.address == router.choose(candidates, prefix))
    mean = (sum(counts) + 1) / len(counts)
    assert chosen.in_flight + 1 <= SPREAD * mean + max(1, slots / 8)
    kept = next(c for c in candidates if c.address == holder)
    if kept.in_flight + 1 <= bound(kept, mean):
        assert chosen is kept


@given(st.lists(st.sampled_from("fghij"), max_size=120), SLOTS)
def test_the_bound_holds_all_the_time(families: list[str], slots: int) -> None:
    """Requests that never end: every engine stays below the bound, however skewed the families are."""
    router = Router(room_blocks=ROOM)
    counts = dict.fromkeys(ENGINES, 0)
    for family in families:
        candidates = [Candidate(address, counts[address], slots) for address in ENGINES]
        counts[routed(router, candidates, prompt(family, "hello"))] += 1
        mean = sum(counts.values()) / len(ENGINES)
        assert max(counts.values()) <= SPREAD * mean + max(1, slots / 8)


@given(COUNTS, st.lists(st.booleans(), min_size=4, max_size=4))
def test_somebody_is_always_open(counts: list[int], mute: list[bool]) -> None:
    candidates = [Candidate(a, n, 4, mute=m) for a, n, m in zip(ENGINES, counts, mute, strict=True)]
    able = open_ones(candidates)
    assert able and (all(mute) or not any(c.mute for c in able))


def test_where_requests_wait_there_is_less_room() -> None:
    router, prefix = Router(room_blocks=ROOM), prompt("f", "hello")
    router.sent("a:1", prefix)
    candidates = busy(20, 2, 2, 2, slots=256)
    assert router.choose(candidates, prefix) == "a:1"
    waiting = [replace(candidates[0], waiting=True), *candidates[1:]]
    assert router.choose(waiting, prefix) != "a:1"


def test_new_prompts_follow_what_was_read_lately_and_not_long_ago() -> None:
    router = Router(room_blocks=400)
    for number in range(60):
        router.sent("a:1", prefix_of([f"long ago {number} " * 200], ["x"]))
    places = Counter(
        routed(router, calm(), prefix_of([f"now {number} " * 400], ["x"])) for number in range(200)
    )
    assert set(places) == set(ENGINES) and min(places.values()) > 30


def test_a_mute_engine_is_passed_by_whatever_it_holds() -> None:
    router, prefix = Router(room_blocks=ROOM), prompt("f", "hello")
    router.sent("a:1", prefix)
    candidates = [Candidate("a:1", 1, 8, mute=True), *calm()[1:]]
    assert router.choose(candidates, prefix) != "a:1"


def test_without_a_prompt_the_calmer_half_serves() -> None:
    assert Router(room_blocks=ROOM).choose(busy(3, 0, 3, 3), NO_PREFIX) == "b:1"
    least = Router(RoutingPolicy.LEAST_IN_FLIGHT, room_blocks=ROOM)
    assert least.choose(busy(1, 1, 0, 0), prompt("f")) == "c:1"
    assert least.choose([]) is None


@given(COUNTS, st.text(max_size=10))
def test_a_choice_is_a_function_of_what_is_known(counts: list[int], family: str) -> None:
    routers = [Router(room_blocks=ROOM) for _ in range(2)]
    for router in routers:
        router.sent("a:1", prompt("held", "x"))
        assert router.choose(busy(*counts), prompt(family)) == routers[0].choose(
            busy(*counts), prompt(family)
        )


# -- ageing ------------------------------------------------------------------------------------------------

CHAINS = st.lists(
    st.lists(st.integers(0, 3), max_size=12).map(
        lambda steps: [hash(tuple(steps[: n + 1])) for n in range(len(steps))]
    ),
    max_size=40,
)


@given(CHAINS, st.integers(1, 20))
def test_holdings_are_bounded_and_whole(chains: list[list[int]], room: int) -> None:
    holdings = Holdings(room)
    for chain in chains:
        holdings.add(chain)
        assert len(holdings.blocks) <= room
        assert holdings.held(chain) == min(len(chain), room)
    for chain in chains:
        kept = [block in holdings.blocks for block in chain]
        assert kept == sorted(kept, reverse=True), "a block is kept whose beginning is gone"
        assert holdings.held(chain) == sum(kept)


def test_the_least_recently_used_goes_first() -> None:
    holdings = Holdings(4)
    holdings.add([1, 2])
    holdings.add([3, 4])
    holdings.add([1, 2])
    holdings.add([5, 6])
    assert (holdings.held([1, 2]), holdings.held([3, 4]), holdings.held([5, 6])) == (2, 0, 2)
