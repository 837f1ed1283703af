"""Figure 7: what is still served of a workflow after one realised change, by what an entry is an entry of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dynbranch.bench.paper.parts import Found, Made, Rows, Table
from dynbranch.bench.paper.runs import Size, Spec
from dynbranch.csl.fake import SteppedLibrary
from dynbranch.domain.reuse import Hit, Miss, ReadScope


@dataclass(frozen=True)
class Stage:
    """One node: whose output its input holds, and the source that it reads."""

    name: str
    needs: tuple[str, ...] = ()
    source: str = ""


TAKEN: Final = (
    Stage("v1"),
    Stage("v2", ("v1",)),
    Stage("v3", ("v2",), source="catalogue"),
    Stage("v4", ("v3",)),
    Stage("x1"),
    Stage("x2", ("x1",)),
)
"""v1 → v2 → v3 → v4, and v4 leads to x1 → x2 by control only: x1's input holds no output of v4."""

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


class ReuseUnits:
    name = "figure 7"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return ()

    def make(self, size: Size, found: Found) -> Made:
        served: dict[str, list[str]] = {}
        for unit, one in (
            ("whole response", run_whole_response),
            ("unchanged prefix", lambda library, catalogue: run(library, prefix_region, catalogue)),
            ("subgraph name", lambda library, catalogue: run(library, subgraph, catalogue)),
        ):
            library = SteppedLibrary()
            one(library, "old")
            library.write("catalogue/item")
            served[unit] = one(library, "new")
        rows: Rows = [("an entry is of a", "served of six", "paper", "which")]
        for (unit, names), paper in zip(served.items(), ("0", "2", "4"), strict=True):
            rows.append((unit, str(len(names)), paper, " ".join(names)))
        return Made(data=served, tables=(Table("Figure 7: served after one change", tuple(rows)),))
