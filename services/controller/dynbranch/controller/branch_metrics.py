"""Prometheus metrics of branches, by workflow type and decision point: both come from templates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.controls import DryRun
from dynbranch.controller.core.branches.messages import Mark, Told
from dynbranch.controller.core.branches.records import Branch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PLACE = ("workflow_type", "decision_point")
_ABORT_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_MS = (-10_000, -1000, -100, -10, 0, 10, 100, 1000, 10_000)
_LOADS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 4.0)
_WINDOW_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class DecisionMetrics:
    """What admission decided, and by which numbers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refusals = Counter(
            "dynbranch_admission_refusals",
            "Branches and candidates that were refused, by the reason; other: it holds numbers.",
            (*_PLACE, "what", "reason"),
            registry=registry,
        )
        self._priced = {
            name: Histogram(f"dynbranch_admission_{name}", text, _PLACE, buckets=buckets, registry=registry)
            for name, text, buckets in (
                ("probability", "Of candidates: that they are selected and used in time.", _SHARES),
                ("threshold", "Of candidates: the probability that their price asks for.", _SHARES),
                ("gain_ms", "Of candidates: what they save where they are used.", _MS),
                ("cost_ms", "Of candidates: what they hold up where they are not.", _MS),
                ("utility_ms", "Of candidates: what they are worth.", _MS),
                ("expected_ms", "Of refused branches: what they were expected to return.", _MS),
                ("upper_ms", "Of refused branches: the most that they might return.", _MS),
                ("rho_h", "Of what was decided on: pressure over a fill's stay.", _LOADS),
                ("o_fill", "Of candidates: fills that their engine ran, of its limit for them.", _LOADS),
                ("o_kv", "Of what was decided on: memory that fills reserve, of its budget.", _LOADS),
            )
        }

    def decided(self, place: tuple[str, str], what: str, facts: Mapping[str, str | float | bool]) -> None:
        if not facts.get("admitted", False):
            reason = str(facts["reason"]).removeprefix("seen: ").removeprefix("spoken of: ")
            plain = not any(letter.isdigit() for letter in reason)
            self._refusals.labels(*place, what, reason if plain else "other").inc()
        for name, histogram in self._priced.items():
            if name in facts:
                histogram.labels(*place).observe(float(facts[name]))


class BranchMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._branches = Counter(
            "dynbranch_branches",
            "Moves of branches: opened, refused, resolved, ambiguous, expired, settled.",
            (*_PLACE, "move"),
            registry=registry,
        )
        self._candidates = Counter(
            "dynbranch_branch_candidates",
            "Candidates that were priced.",
            (*_PLACE, "admitted"),
            registry=registry,
        )
        self._decisions = DecisionMetrics(registry)
        self._rehearsed = Gauge(
            "dynbranch_dryrun",
            "What would have run ahead, all together: fills, consumed, saved_ms, used_ms, cost_ms.",
            ("what",),
            registry=registry,
        )
        self._stages = Counter(
            "dynbranch_fill_stages",
            "Stages of fills by the state that they moved to.",
            (*_PLACE, "state"),
            registry=registry,
        )
        self._fills = Counter(
            "dynbranch_fills", "Fills that ended, consumed or not.", (*_PLACE, "consumed"), registry=registry
        )
        self._engine = Counter(
            "dynbranch_fill_engine_seconds",
            "Engine time of fills that ended: used, saved, discarded.",
            (*_PLACE, "kind"),
            registry=registry,
        )
        self._windows = Histogram(
            "dynbranch_branch_window_seconds",
            "From opening to resolution.",
            _PLACE,
            buckets=_WINDOW_S,
            registry=registry,
        )
        self._aborts = Histogram(
            "dynbranch_fill_abort_seconds",
            "From the loss of a running fill to its engine's confirmation.",
            buckets=_ABORT_S,
            registry=registry,
        )
        self._open = Gauge("dynbranch_open_branches", "Branches not yet resolved.", registry=registry)
        self._reserved = Gauge("dynbranch_reserved_fills", "Fills that hold a slot.", registry=registry)
        self._workflows = Gauge("dynbranch_open_workflows", "Workflows that are followed.", registry=registry)
        self._settlements = Gauge(
            "dynbranch_settlements_ignored",
            "Settlements that came again, too late, or for fills that nobody knows.",
            ("why",),
            registry=registry,
        )
        self._stood_down = Gauge(
            "dynbranch_stood_down",
            "1: a newer controller has the store, and this one runs nothing ahead.",
            registry=registry,
        )
        self._untold = Counter(
            "dynbranch_untold_events",
            "Events of gateways that no template in force explains.",
            registry=registry,
        )

    def watch(self, book: BranchBook) -> None:
        filling, admission = book.filling, book.admission
        if isinstance(admission, DryRun):
            for what in ("fills", "consumed", "saved_ms", "used_ms", "cost_ms"):
                self._rehearsed.labels(what).set_function(partial(getattr, admission.total, what))
        self._open.set_function(lambda: book.branches.unresolved)
        self._reserved.set_function(lambda: len(filling.reservations))
        self._workflows.set_function(lambda: len(book.workflows))
        self._settlements.labels("duplicate").set_function(lambda: filling.duplicates)
        self._settlements.labels("late").set_function(lambda: filling.late)
        self._settlements.labels("unknown").set_function(lambda: filling.unknown)

    def stood_down(self) -> None:
        self._stood_down.set(1)

    def aborted(self, spent_ms: float) -> None:
        self._aborts.observe(spent_ms / 1000)

    def untold(self) -> None:
        self._untold.inc()

    def tell(self, told: Told, branch: Branch) -> None:
        place = (branch.workflow.workflow_type_id, branch.point.name)
        facts = dict(told.facts)
        match told.mark:
            case Mark.REFUSED:
                self._branches.labels(*place, told.mark.value).inc()
                self._decisions.decided(place, "branch", facts)
            case Mark.OPENED | Mark.AMBIGUOUS | Mark.EXPIRED | Mark.SETTLED:
                self._branches.labels(*place, told.mark.value).inc()
            case Mark.RESOLVED:
                self._branches.labels(*place, told.mark.value).inc()
                self._windows.labels(*place).observe(float(facts["after_ms"]) / 1000)
            case Mark.PRICED:
                self._candidates.labels(*place, str(facts["admitted"]).lower()).inc()
                self._decisions.decided(place, "candidate", facts)
            case Mark.STAGE_MOVED:
                self._stages.labels(*place, str(facts["state"])).inc()
            case Mark.FILL_ENDED:
                self._fills.labels(*place, str(facts["consumed"]).lower()).inc()
                for kind in ("used", "saved", "discarded"):
                    self._engine.labels(*place, kind).inc(max(0.0, float(facts[f"{kind}_ms"]) / 1000))
            case Mark.PROPOSED | Mark.SEEN | Mark.SPOKEN | Mark.STAGE_BEGAN:
                pass
