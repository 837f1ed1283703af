"""The benchmark of hostile bodies, at a size for tests."""

from __future__ import annotations

import pytest
from dynbranch.bench.hostile import run_hostile


@pytest.mark.promise("I1")
def test_nothing_is_stored_or_served_wrongly() -> None:
    figures, raw = run_hostile(lambda *_: None, 7, 1000)
    figure = figures["hostile_stored_wrongly"]
    assert (figure.value, figure.n) == (0, 1000), raw["counterexamples"]
    assert raw["entries"] > 50 and raw["outcomes"]["hit"] > 50
