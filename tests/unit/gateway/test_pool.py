"""The choice of executors."""

from __future__ import annotations

from dynbranch.domain.engine import ModelDescription
from dynbranch.domain.ids import Digest
from dynbranch.domain.reuse import Fingerprint
from dynbranch.gateway.core.pool import NoPool, Offer, Pool, choose_member, choose_pool
from hypothesis import given
from hypothesis import strategies as st

MODEL = ModelDescription("m", Fingerprint())


def offer(address: str, fingerprint: bytes = b"f", *, ready: bool = True, in_flight: int = 0) -> Offer:
    return Offer(address, MODEL, Digest(fingerprint), ready, in_flight, f"http://{address}")


def chosen(*offers: Offer) -> Pool:
    pool = choose_pool(offers, undescribed=0)
    assert isinstance(pool, Pool)
    return pool


def test_the_least_busy_ready_agent_is_chosen_and_equals_by_address() -> None:
    pool = chosen(
        offer("c:1", in_flight=1),
        offer("b:1", in_flight=1),
        offer("a:1", in_flight=2),
        offer("0:1", ready=False),
    )
    assert choose_member(pool) == "b:1"
    assert choose_member(pool, {"b:1"}) == "c:1"
    assert choose_member(pool, {"b:1", "c:1", "a:1"}) is None


def test_one_fingerprint_only() -> None:
    pool = chosen(offer("a:1", b"2"), offer("b:1", b"1"), offer("c:1", b"1"))
    assert {member.address for member in pool.members} == {"b:1", "c:1"}


def test_nobody_ready_still_gives_the_name_and_the_raw_ways() -> None:
    pool = chosen(offer("a:1", ready=False))
    assert pool.members == () and pool.bypass_urls == ("http://a:1",)


def test_an_agent_that_has_not_spoken_may_be_the_one() -> None:
    assert choose_pool([], undescribed=1) is NoPool.UNDESCRIBED
    assert choose_pool([], undescribed=0) is NoPool.UNKNOWN


OFFERS = st.lists(
    st.builds(
        offer,
        st.sampled_from([f"{n}:1" for n in range(6)]),
        st.sampled_from([b"1", b"2"]),
        ready=st.booleans(),
        in_flight=st.integers(0, 3),
    ),
    min_size=1,
    unique_by=lambda o: o.address,
)


@given(OFFERS, st.randoms())
def test_the_order_of_reports_does_not_matter(offers: list[Offer], chance: object) -> None:
    shuffled = list(offers)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = chosen(*offers), chosen(*shuffled)
    assert first.fingerprint == second.fingerprint
    assert choose_member(first) == choose_member(second)
