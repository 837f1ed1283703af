"""Where a fill runs."""

from __future__ import annotations

import pytest
from dynbranch.controller.core.branches.messages import EngineSeen, StageKey
from dynbranch.controller.core.branches.reservations import Placement, Quota, Reservations
from dynbranch.domain.ids import FillId

BODY = b"x" * 600


def two_engines(placement: Placement) -> Reservations:
    found = Reservations(Quota(placement=placement))
    for address in ("e1", "e2"):
        found.see(EngineSeen(address, 4, 0, 0, fill_slots=4))
    return found


def placed(reservations: Reservations, *members: str) -> str | None:
    number = len(reservations)
    return reservations.place(StageKey(FillId(b"f"), number), members or ("e1", "e2"), BODY, 10)


@pytest.mark.parametrize(
    ("placement", "expected"), [(Placement.PREFIX, ["e1", "e1"]), (Placement.LEAST_LOADED, ["e1", "e2"])]
)
def test_a_prompt_that_begins_alike_follows_its_beginning_or_the_load(
    placement: Placement, expected: list[str]
) -> None:
    reservations = two_engines(placement)
    assert [placed(reservations, "e1"), placed(reservations)] == expected


@pytest.mark.parametrize("placement", Placement)
def test_of_equals_the_last_one_is_taken_as_gateways_take_the_first(placement: Placement) -> None:
    assert placed(two_engines(placement)) == "e2"


def test_what_is_demanded_burdens_an_engine_like_a_fill() -> None:
    reservations = two_engines(Placement.LEAST_LOADED)
    reservations.see(EngineSeen("e2", 4, 1, 0, fill_slots=4))
    assert [placed(reservations), placed(reservations)] == ["e1", "e2"]


def test_a_full_engine_yields_to_the_one_at_which_the_fill_was_priced() -> None:
    reservations = two_engines(Placement.PREFIX)
    assert placed(reservations, "e1") == "e1"
    key = StageKey(FillId(b"g"), 0)
    assert reservations.place(key, ("e1", "e2"), BODY, 10, "e2") == "e1", "its prompt begins alike there"
    reservations.see(EngineSeen("e1", 4, 4, 0, fill_slots=4))
    key = StageKey(FillId(b"g"), 1)
    assert reservations.place(key, ("e1", "e2"), BODY, 10, "e2") == "e2"
    key = StageKey(FillId(b"g"), 2)
    assert reservations.place(key, ("e1",), BODY, 10, "e2") == "e1", "it can not run there"
    reservations.validate_state()
