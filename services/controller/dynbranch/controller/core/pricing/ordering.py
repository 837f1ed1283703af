"""Action 1: which candidates run, where and in which order, at the load that the ones before leave.

The rule takes the best utility, projects its footprint and reprices the rest; it stops at the first maximum
that is not positive (paper Algorithm 1, Proposition A.8). Beside it the exact order over all ordered subsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.prices import Footprint, PriceCurves, Prices

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
    footprint: Footprint | None = None

    @property
    def expected_cost_ms(self) -> float:
        """(1 - p) C, as recorded at reservation."""
        return (1 - self.probability) * self.cost_ms

    def refused(self, reason: str) -> Priced:
        return replace(self, admitted=False, reason=reason, audit=False)


def utility(probability: float, gain_ms: float, cost_ms: float) -> float:
    """Equation 6."""
    return probability * gain_ms - (1 - probability) * cost_ms


def threshold(gain_ms: float, cost_ms: float) -> float:
    """Equation 7. Where nothing is gained and nothing costs, no probability is enough."""
    both = gain_ms + cost_ms
    return cost_ms / both if both > 0 else 1.0


def is_feasible(view: View, footprint: Footprint) -> bool:
    """The hard limits: the count of fills, and the KV reservation as a whole."""
    fills, most = view.o_fill * view.fill_slots, view.fill_slots + _ROUNDING
    return fills + 1 <= most and view.o_kv + footprint.kv_share <= 1 + _ROUNDING


@dataclass(frozen=True, slots=True)
class _Offer:
    """One engine as it would be with what was admitted so far."""

    view: View
    prices: Prices


def order(
    candidates: Sequence[Priceable], views: Mapping[str, View], curves: PriceCurves, *, audit: bool = False
) -> tuple[Priced, ...]:
    """Every candidate once: the admitted ones first, in the order in which they start. ``audit``: the first
    whose utility is not positive runs all the same, and is the last."""
    offers = {engine: _Offer(view, curves.at(view)) for engine, view in views.items()}
    best = [_best_engine(one, offers) for one in candidates]
    left = list(range(len(candidates)))
    decided: list[Priced] = []
    while left:
        at = max(left, key=lambda index: (bool(best[index][1]), best[index][0], -index))
        (worth, engine), one = best[at], candidates[at]
        probe = worth <= 0
        if probe and not (audit and engine and one.gain_ms > 0):
            break
        left.remove(at)
        decided.append(_admitted(one, engine, offers[engine], probe=probe))
        offers[engine] = _with_fill(offers[engine], one, curves)
        if probe:
            break
        # An engine with one more fill is dearer, so whoever is better off elsewhere stays so.
        for index in left:
            if best[index][1] == engine:
                best[index] = _best_engine(candidates[index], offers)
    return (*decided, *(_refused(candidates[index], offers) for index in left))


def order_exactly(
    candidates: Sequence[Priceable], views: Mapping[str, View], curves: PriceCurves
) -> tuple[Priced, ...]:
    """The ordered subset of the largest total utility, each candidate at the engine where it is worth most at
    the start. What is projected depends on the subset alone, so one best order per subset is enough."""
    assert len(candidates) <= MOST_EXACT
    start = {engine: _Offer(view, curves.at(view)) for engine, view in views.items()}
    engines = [_best_engine(one, start)[1] for one in candidates]
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    states = {0: start}
    for subset in range(1 << len(candidates)):
        if subset not in best:
            continue
        worth, before = best[subset]
        offers = states[subset]
        for index, one in enumerate(candidates):
            engine = engines[index]
            if subset >> index & 1 or not engine or not is_feasible(offers[engine].view, one.footprint):
                continue
            total = worth + _utility_at(one, offers[engine])
            larger = subset | 1 << index
            if larger not in states:
                states[larger] = {**offers, engine: _with_fill(offers[engine], one, curves)}
            if larger not in best or total > best[larger][0]:
                best[larger] = (total, (*before, index))
    _, chosen = max(best.values(), key=lambda found: found[0])
    decided, offers = [], start
    for index in chosen:
        one, engine = candidates[index], engines[index]
        decided.append(_admitted(one, engine, offers[engine], probe=False))
        offers = {**offers, engine: _with_fill(offers[engine], one, curves)}
    rest = [one for index, one in enumerate(candidates) if index not in chosen]
    return (*decided, *(_refused(one, offers) for one in rest))


def sequence_utility(decided: Sequence[Priced]) -> float:
    """J_seq of paper Appendix B: what each was worth at the load that those before it had left."""
    return sum(one.utility_ms for one in decided if one.admitted)


def _best_engine(one: Priceable, offers: Mapping[str, _Offer]) -> tuple[float, str]:
    """Where its utility is largest, the first of equals, and that utility; nowhere: 0 and no name."""
    best, worth = "", 0.0
    footprint, probability = one.footprint, one.probability
    expected_ms, wasted = probability * one.gain_ms, 1 - probability
    slot_s, kv_share_s = footprint.slot_s, footprint.kv_share_s
    for engine in one.engines:
        offer = offers.get(engine)
        if offer is None or not is_feasible(offer.view, footprint):
            continue
        # ``utility``, written out: before a large fleet nothing is asked more often.
        found = expected_ms - wasted * (offer.prices.slot_ms * slot_s + offer.prices.kv_ms * kv_share_s)
        if not best or found > worth:
            best, worth = engine, found
    return worth, best


def _utility_at(one: Priceable, offer: _Offer) -> float:
    return utility(one.probability, one.gain_ms, offer.prices.of(one.footprint))


def _with_fill(offer: _Offer, one: Priceable, curves: PriceCurves) -> _Offer:
    view = offer.view.with_fill(one.footprint.kv_share)
    return _Offer(view, curves.at(view))


def _admitted(one: Priceable, engine: str, offer: _Offer, *, probe: bool) -> Priced:
    return _priced(one, engine, offer, "audit" if probe else "worth its price", admitted=True, audit=probe)


def _refused(one: Priceable, offers: Mapping[str, _Offer]) -> Priced:
    _, engine = _best_engine(one, offers)
    if engine:
        reason = "no overlap remains" if one.gain_ms <= 0 else "not worth its price"
        return _priced(one, engine, offers[engine], reason, admitted=False, audit=False)
    reason = "no engine has room for one more fill" if one.engines else "no engine can run it"
    return Priced(one.selection, False, reason, "", one.probability, one.gain_ms, 0.0, 1.0, 0.0, None)


def _priced(
    one: Priceable, engine: str, offer: _Offer, reason: str, *, admitted: bool, audit: bool
) -> Priced:
    cost = offer.prices.of(one.footprint)
    return Priced(
        selection=one.selection,
        admitted=admitted,
        reason=reason,
        engine=engine,
        probability=one.probability,
        gain_ms=one.gain_ms,
        cost_ms=cost,
        threshold=threshold(one.gain_ms, cost),
        utility_ms=utility(one.probability, one.gain_ms, cost),
        view=offer.view,
        audit=audit,
        footprint=one.footprint,
    )
