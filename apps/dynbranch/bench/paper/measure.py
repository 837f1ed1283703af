"""``bench paper``: the paper's figures and tables on the simulator, which drives the product's own cores.

Times are virtual: a seed gives the same numbers on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dynbranch.bench.paper.alone import AheadAlone, ReuseAlone, ShareOfOracle
from dynbranch.bench.paper.arms import run
from dynbranch.bench.paper.cells import EndToEnd
from dynbranch.bench.paper.elsewhere import Admission, Gates, Interference
from dynbranch.bench.paper.parts import Made, Part
from dynbranch.bench.paper.pictures import draw
from dynbranch.bench.paper.reuse_units import ReuseUnits
from dynbranch.bench.paper.runs import QUICK, Seen, Size, Spec, perform
from dynbranch.bench.paper.sweeps import Drafters, Load, Phases, Repetition, Width
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.calibration.picture import can_draw
from dynbranch.demo.measures import Figure

PARTS: Final[Sequence[Part]] = (
    Interference(),
    ReuseUnits(),
    EndToEnd(),
    Width(),
    Repetition(),
    Drafters(),
    Gates(),
    Load(),
    Phases(),
    ReuseAlone(),
    AheadAlone(),
    Admission(),
    ShareOfOracle(),
)


def measure(
    tell: Tell,
    *,
    quick: bool = False,
    data: Path | None = None,
    parts: Sequence[str] = (),
    pictures: Path | None = None,
    size: Size | None = None,
) -> Measured:
    """``parts``: the names of some, or their numbers (``8`` is ``figure 8``); none are all. ``pictures``: a
    folder for SVG files. Raises BenchFailed."""
    size = replace(size or (QUICK if quick else Size()), data=data)
    chosen = choose(parts)
    if pictures is not None and not can_draw():
        raise BenchFailed("pictures need matplotlib: pip install 'dynbranch[plot]'")
    found = _runs(chosen, size, tell)
    made: dict[str, Made] = {}
    for number, part in enumerate(chosen):
        tell(part.name, number, len(chosen))
        made[part.name] = part.make(size, found)
    if pictures is not None:
        _draw(pictures, made)
    wrong = {spec: one.wrong for spec, one in found.items() if one.wrong}
    return Measured(
        figures_of(made),
        {
            "size": {
                name: getattr(size, name) for name in ("seeds", "count", "unseen", "serial", "serial_unseen")
            },
            "runs": len(found),
            "simulated_calls": sum(one.calls for one in found.values()),
            "parts": {name: one.data for name, one in made.items()},
            "tables": [
                {"title": table.title, "rows": table.rows} for one in made.values() for table in one.tables
            ],
        },
        tuple(f"{spec.arm} gave {count} wrong results on {spec.workload}" for spec, count in wrong.items()),
        tables=tuple((table.title, table.rows) for one in made.values() for table in one.tables),
    )


def choose(names: Sequence[str]) -> tuple[Part, ...]:
    """Raises BenchFailed."""
    if not names:
        return tuple(PARTS)
    found: list[Part] = []
    for name in names:
        asked = {name.lower(), f"figure {name}".lower(), f"table {name}".lower()}
        mine = [part for part in PARTS if part.name in asked]
        if not mine:
            raise BenchFailed(f"there is no part {name!r}; there are: {', '.join(p.name for p in PARTS)}")
        found += [part for part in mine if part not in found]
    return tuple(found)


def figures_of(made: Mapping[str, Made]) -> dict[str, Figure]:
    return {key: figure for one in made.values() for key, figure in one.figures.items()}


def _runs(chosen: Sequence[Part], size: Size, tell: Tell) -> dict[Spec, Seen]:
    """What the parts want, until none wants more: some see from one run which other they want."""
    found: dict[Spec, Seen] = {}
    while missing := _missing(chosen, size, found):
        before, total = len(found), len(found) + len(missing)
        tell("runs", before, total)

        def told(done: int, before: int = before, total: int = total) -> None:
            tell("runs", before + done, total)

        found.update(perform(missing, run, size, told))
    return found


def _missing(chosen: Sequence[Part], size: Size, found: Mapping[Spec, Seen]) -> list[Spec]:
    wanted = dict.fromkeys(spec for part in chosen for spec in part.wants(size, found))
    return [spec for spec in wanted if spec not in found]


def _draw(folder: Path, made: Mapping[str, Made]) -> None:
    for name, one in made.items():
        if one.panels:
            draw(folder / f"{name.replace(' ', '-')}.svg", name, one.panels)
