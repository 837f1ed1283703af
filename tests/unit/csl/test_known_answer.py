"""The known answer of the paper's Figure 7: one realised change, three exact serving boundaries."""

from __future__ import annotations

import pytest
from dynbranch.bench.paper.reuse_units import (
    TAKEN,
    Naming,
    prefix_region,
    run,
    run_whole_response,
    subgraph,
)
from dynbranch.csl.fake import SteppedLibrary


@pytest.mark.promise("C1.figure7")
@pytest.mark.parametrize(
    ("naming", "expected"),
    [(prefix_region, ["v1", "v2"]), (subgraph, ["v1", "v2", "x1", "x2"])],
)
def test_stage_boundaries_serve_two_and_four_of_six(naming: Naming, expected: list[str]) -> None:
    library = SteppedLibrary()
    assert run(library, naming, "old") == []
    assert run(library, naming, "old") == [stage.name for stage in TAKEN]
    library.write("catalogue/item")
    assert run(library, naming, "new") == expected
    assert run(library, naming, "new") == [stage.name for stage in TAKEN]


@pytest.mark.promise("C1.figure7")
def test_a_whole_response_serves_none_of_six() -> None:
    library = SteppedLibrary()
    assert run_whole_response(library, "old") == []
    assert len(run_whole_response(library, "old")) == 6
    library.write("catalogue/item")
    assert run_whole_response(library, "new") == []
