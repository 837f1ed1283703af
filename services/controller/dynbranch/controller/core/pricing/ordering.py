"""Action 1: which candidates run, where and in which order, at the load that the ones before leave.

The rule takes the best utility, projects its footprint and reprices the rest; it stops at the first maximum
that is not positive (paper Algorithm 1, Proposition A.8). Beside it the exact order over all ordered subsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.prices import Footprint, PriceCurves

MOST_EXACT = 6
"""Beyond it the exact order costs too much for a decision: K * 2^K steps."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Priceable:
    """One candidate. ``probability`` is that it is selected and used in time; ``gain_ms`` what it then saves
    beyond C1. ``engines`` may run it."""

    selection: str
    probability: float
    gain_ms: float
    footprint: Footprint
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Priced:
    """One candidate as it was decided on, and by which numbers. ``cost_ms`` is C_s(V), ``threshold`` p*."""

    selection: str
    admitted: bool
    reason: str
    engine: str
    probability: float
    gain_ms: float
    cost_ms: float
    threshold: float
    utility_ms: float
    view: View | None
    audit: bool = False

    @property
    def expected_cost_ms(self) -> float:
        """(1 - p) C, as recorded at reservation."""
        return (1 - self.probability) * self.cost_ms


def utility(probability: float, gain_ms: float, cost_ms: float) -> float:
    """Equation 6."""
    return probability * gain_ms - (1 - probability) * cost_ms


def threshold(gain_ms: float, cost_ms: float) -> float:
    """Equation 7. Where nothing is gained and nothing costs, no probability is enough."""
    both = gain_ms + cost_ms
    return cost_ms / both if both > 0 else 1.0


def is_feasible(view: View, footprint: Footprint) -> bool:
    """The hard limits: the count of fills, and the KV reservation as a whole."""
    return view.fills + 1 <= view.fill_slots + _ROUNDING and view.o_kv + footprint.kv_share <= 1 + _ROUNDING


def order(
    candidates: Sequence[Priceable], views: Mapping[str, View], curves: PriceCurves, *, audit: bool = False
) -> tuple[Priced, ...]:
    """Every candidate once: the admitted ones first, in the order in which they start. ``audit``: the first
    whose utility is not positive runs all the same, and is the last."""
    now = dict(views)
    left = list(candidates)
    decided: list[Priced] = []
    while left:
        best, best_at = _best(left, now, curves)
        if best.utility_ms <= 0 and not (audit and best.engine):
            break
        one = left.pop(best_at)
        probe = best.utility_ms <= 0
        decided.append(_admitted(best, probe))
        now[best.engine] = now[best.engine].with_fill(one.footprint.kv_share)
        if probe:
            break
    decided += [_refused(_at_best_engine(one, now, curves)) for one in left]
    return tuple(decided)


def order_exactly(
    candidates: Sequence[Priceable], views: Mapping[str, View], curves: PriceCurves
) -> tuple[Priced, ...]:
    """The ordered subset of the largest total utility, each candidate at the engine where it is worth most at
    the start. What is projected depends on the subset alone, so one best order per subset is enough."""
    assert len(candidates) <= MOST_EXACT
    placed = [_at_best_engine(one, views, curves) for one in candidates]
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    states: dict[int, dict[str, View]] = {0: dict(views)}
    for subset in range(1 << len(candidates)):
        if subset not in best:
            continue
        worth, before = best[subset]
        state = states[subset]
        for index, one in enumerate(candidates):
            engine = placed[index].engine
            if subset >> index & 1 or not engine or not is_feasible(state[engine], one.footprint):
                continue
            total = worth + utility(one.probability, one.gain_ms, curves.cost(state[engine], one.footprint))
            larger = subset | 1 << index
            if larger not in best or total > best[larger][0]:
                best[larger] = (total, (*before, index))
                states[larger] = {**state, engine: state[engine].with_fill(one.footprint.kv_share)}
    _, chosen = max(best.values(), key=lambda found: found[0])
    return _as_priced(chosen, candidates, placed, views, curves)


def sequence_utility(decided: Sequence[Priced]) -> float:
    """J_seq of paper Appendix B: what each was worth at the load that those before it had left."""
    return sum(one.utility_ms for one in decided if one.admitted)


def _as_priced(
    chosen: tuple[int, ...],
    candidates: Sequence[Priceable],
    placed: Sequence[Priced],
    views: Mapping[str, View],
    curves: PriceCurves,
) -> tuple[Priced, ...]:
    now = dict(views)
    decided = []
    for index in chosen:
        one, engine = candidates[index], placed[index].engine
        decided.append(_admitted(_price(one, engine, now[engine], curves), probe=False))
        now[engine] = now[engine].with_fill(one.footprint.kv_share)
    rest = [one for index, one in enumerate(candidates) if index not in chosen]
    return (*decided, *(_refused(_at_best_engine(one, now, curves)) for one in rest))


def _best(left: Sequence[Priceable], views: Mapping[str, View], curves: PriceCurves) -> tuple[Priced, int]:
    """The largest utility among what has room; of what has none, any."""
    found = [_at_best_engine(one, views, curves) for one in left]
    at = max(
        range(len(found)), key=lambda index: (bool(found[index].engine), found[index].utility_ms, -index)
    )
    return found[at], at


def _at_best_engine(one: Priceable, views: Mapping[str, View], curves: PriceCurves) -> Priced:
    best: Priced | None = None
    for engine in one.engines:
        view = views.get(engine)
        if view is None or not is_feasible(view, one.footprint):
            continue
        priced = _price(one, engine, view, curves)
        if best is None or priced.utility_ms > best.utility_ms:
            best = priced
    if best is not None:
        return best
    reason = "no engine has room for one more fill" if one.engines else "no engine can run it"
    return Priced(one.selection, False, reason, "", one.probability, one.gain_ms, 0.0, 1.0, 0.0, None)


def _price(one: Priceable, engine: str, view: View, curves: PriceCurves) -> Priced:
    cost = curves.cost(view, one.footprint)
    return Priced(
        selection=one.selection,
        admitted=False,
        reason="",
        engine=engine,
        probability=one.probability,
        gain_ms=one.gain_ms,
        cost_ms=cost,
        threshold=threshold(one.gain_ms, cost),
        utility_ms=utility(one.probability, one.gain_ms, cost),
        view=view,
    )


def _admitted(one: Priced, probe: bool) -> Priced:
    reason = "audit" if probe else "worth its price"
    return _told(one, admitted=True, reason=reason, audit=probe)


def _refused(one: Priced) -> Priced:
    if one.reason:
        return one
    reason = "no overlap remains" if one.gain_ms <= 0 else "not worth its price"
    return _told(one, admitted=False, reason=reason, audit=False)


def _told(one: Priced, *, admitted: bool, reason: str, audit: bool) -> Priced:
    return Priced(
        one.selection,
        admitted,
        reason,
        one.engine,
        one.probability,
        one.gain_ms,
        one.cost_ms,
        one.threshold,
        one.utility_ms,
        one.view,
        audit,
    )
