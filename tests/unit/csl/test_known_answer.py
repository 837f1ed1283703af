"""The known answer of the paper's Figure 7: one realised change, three exact serving boundaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from dynbranch.csl.fake import SteppedLibrary
from dynbranch.domain.reuse import Hit, Miss, ReadScope


@dataclass(frozen=True)
class Stage:
    """One node: whose output its input holds, and the source that it reads."""

    name: str
    needs: tuple[str, ...] = ()
    source: str = ""


# v1 → v2 → v3 → v4, and v4 leads to x1 → x2 by control only: x1's input holds no output of v4.
# u is never taken.
TAKEN = (
    Stage("v1"),
    Stage("v2", ("v1",)),
    Stage("v3", ("v2",), source="catalogue"),
    Stage("v4", ("v3",)),
    Stage("x1"),
    Stage("x2", ("x1",)),
)

Naming = Callable[[Stage, dict[str, str]], str]


def subgraph(stage: Stage, outputs: dict[str, str]) -> str:
    """The stage's own rendered input."""
    return f"{stage.name}({','.join(outputs[need] for need in stage.needs)})"


def prefix_region(stage: Stage, outputs: dict[str, str]) -> str:
    """Everything from the root up to the stage."""
    return f"{stage.name}<{'|'.join(outputs.values())}>"


def run(library: SteppedLibrary, naming: Naming, catalogue: str) -> list[str]:
    """One pass over the taken stages. Returns the served ones."""
    served: list[str] = []
    outputs: dict[str, str] = {}
    for stage in TAKEN:
        scope = ReadScope(sources=(stage.source,) if stage.source else ())
        inputs = [outputs[need] for need in stage.needs]
        outcome = library.demand(naming(stage, outputs), workflow="w", scope=scope, inputs=inputs)
        if isinstance(outcome, Hit):
            served.append(stage.name)
            outputs[stage.name] = outcome.payload.decode()
            continue
        assert isinstance(outcome, Miss) and outcome.lease is not None
        outputs[stage.name] = f"{subgraph(stage, outputs)}={catalogue if stage.source else ''}"
        library.commit(outcome.lease, outputs[stage.name], reads=None)
    return served


def run_whole_response(library: SteppedLibrary, catalogue: str) -> list[str]:
    """One entry for the six of them."""
    outcome = library.demand("request", scope=ReadScope(sources=("catalogue",)))
    if isinstance(outcome, Hit):
        return [stage.name for stage in TAKEN]
    assert isinstance(outcome, Miss) and outcome.lease is not None
    library.commit(outcome.lease, f"response with {catalogue}")
    return []


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
