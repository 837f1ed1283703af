"""What the gates have learned, as JSON, so that a controller that starts again need not begin anew.

Trials are not part of it: those under way are void after a restart, and what comes late of the others finds
them settled as they stood.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from dynbranch.controller.core.pricing.estimates import Known, KnownStage, Mean, PricingClass, Rate, StageKind
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.returns import DIMENSION, ClassModel

VERSION = 3
"""1 had nothing beside what the gates learned; from 2 on what tenants have used is written with it; in 3 a
rank may be that of what a decode speaks of."""


class BadSnapshot(ValueError):
    """It can not be taken up. The message says why, for people."""


def snapshot_of(gate: Gate) -> dict[str, Any]:
    known = gate.estimates
    return {
        "version": VERSION,
        "models": [[list(key), _model(model)] for key, model in gate.classes.rows()],
        "ranks": [[list(key), rank, rate.yes, rate.no] for (key, rank), rate in known.ranks.items()],
        "classes": [
            [list(kind.key), kind.multi_stage, one.use.yes, one.use.no, *_mean(one.gain), *_mean(one.stay)]
            for kind, one in known.classes.items()
        ],
        "stages": [
            [kind.workflow_type_id, kind.stage, *_mean(one.execution), *_mean(one.tokens)]
            for kind, one in known.stages.items()
        ],
        "windows": [[list(key), list(lengths)] for key, lengths in known.windows.items()],
        "residencies": list(known.residencies),
        "consumption": _mean(known.consumption),
    }


def take_up(gate: Gate, snapshot: object) -> None:
    """Into a gate that has learned nothing. Raises BadSnapshot; the gate is of no use then. What an older
    version did not write begins anew."""
    if not isinstance(snapshot, Mapping) or not isinstance(snapshot.get("version"), int):
        raise BadSnapshot("it names no version")
    version = snapshot["version"]
    if not 1 <= version <= VERSION:
        raise BadSnapshot(f"it is of version {version}, and this is version {VERSION}")
    try:
        _take_up(gate, snapshot)
        gate.validate_state()
    except (KeyError, ValueError, TypeError, IndexError, AssertionError) as problem:
        raise BadSnapshot(f"it is damaged: {type(problem).__name__} {problem}") from None


def _take_up(gate: Gate, snapshot: Mapping[str, Any]) -> None:
    known, most = gate.estimates, gate.constants.most_classes
    for key, row in snapshot.get("models", ())[: most + 1]:
        gate.classes.put(tuple(map(str, key)), _model_from(row))
    for key, rank, yes, no in snapshot.get("ranks", ()):
        known.ranks[tuple(key), int(rank)] = Rate(float(yes), float(no))
    for key, multi, yes, no, *means in snapshot.get("classes", ()):
        kind = PricingClass(tuple(key), bool(multi))
        known.classes[kind] = Known(Rate(float(yes), float(no)), _mean_from(means[:2]), _mean_from(means[2:]))
    for workflow_type_id, stage, *means in snapshot.get("stages", ()):
        place = StageKind(str(workflow_type_id), str(stage))
        known.stages[place] = KnownStage(_mean_from(means[:2]), _mean_from(means[2:]))
    for key, lengths in snapshot.get("windows", ()):
        known.windows[tuple(key)] = deque(map(float, lengths), maxlen=gate.constants.windows)
    known.residencies.extend(map(float, snapshot.get("residencies", ())))
    known.consumption = _mean_from(snapshot.get("consumption", (0.0, 0.0)))


def _mean(mean: Mean) -> list[float]:
    return [mean.total, mean.weight]


def _mean_from(row: Any) -> Mean:
    total, weight = row
    return Mean(float(total), float(weight))


def _model(model: ClassModel) -> dict[str, Any]:
    return {
        "q": model.q.copy(),
        "inverse": [row.copy() for row in model.inverse],
        "n": model.n,
        "squares": model.squares,
        "life": model.life,
        "spread": model.spread,
        "judged": model.judged,
        "up": model.up,
        "down": model.down,
    }


def _model_from(row: Mapping[str, Any]) -> ClassModel:
    q = [float(value) for value in row["q"]]
    inverse = [[float(value) for value in line] for line in row["inverse"]]
    if len(q) != DIMENSION or [len(line) for line in inverse] != [DIMENSION] * DIMENSION:
        raise ValueError(f"a class has not {DIMENSION} coefficients")
    return ClassModel(
        q,
        inverse,
        n=int(row["n"]),
        squares=float(row["squares"]),
        life=int(row["life"]),
        spread=float(row["spread"]),
        judged=int(row["judged"]),
        up=float(row["up"]),
        down=float(row["down"]),
    )
