"""Every constant of load-priced admission, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    cold_trials: int = 8
    """n0. Six coefficients are learned per class; two more trials than that tell their noise."""
    horizon_s: float = 5.0
    """H until residencies are measured: fills of the paper's 32B model run 2.7 to 6.5 s."""
    horizon_share: float = 0.9
    """H is this quantile of measured residencies: nine of ten fills are gone after it."""
    audit_open: float = 0.05
    """Share of refused branches that open all the same: ten in two hundred, enough to see a class turn."""
    audit_fill: float = 0.02
    """Share of branches in which the best refused candidate runs all the same."""
    quantile: float = 0.9
    """Upper Beta quantile of selection: optimistic while little is known, the rate itself soon after."""
    trial_ttl_s: float = 900.0
    """A trial that has not resolved by then counts as it stands."""
    keep_closed_s: float = 300.0
    """How long after its entry a trial still takes late events: the store repeats what is unacknowledged
    within seconds."""
    most_trials: int = 16_384
    most_classes: int = 1024
    root_ms: float = 20.0
    """What a branch of a wholly unknown kind is expected to be worth: positive, so that none is dead at
    birth, and so little that a predictor that costs 2 ms and is never right is found out within 20 trials.
    What a class takes over from its parent is no longer than that either: the parent tells the direction,
    the cold trials how far."""
    prior_weight: float = 4.0
    """Observations that a prior counts for."""
    seen_rate: float = 0.9
    """Prior rate at which what shows in a decode is what the decision says."""
    spoken_rate: float = 0.5
    """Prior rate at which a name that a decode speaks of before it chooses is what it chooses: of real
    decodes of a router all are, of thoughts a third (bench/results/predictors.json, raw.decodes)."""
    first_rank: float = 0.4
    """Prior rate of the first of a ranking; each next has half of it."""
    prior_use: float = 0.8
    """Prior share of selected fills that are used in time."""
    stage_ms: float = 1000.0
    """What a stage is taken to run until one of its kind was seen to: the paper's shortest stages."""
    stage_tokens: float = 1024.0
    """What it is taken to hold of the KV cache until one was written."""
    windows: int = 64
    """Lengths of windows remembered per class: what is left of one is the mean of those that were longer."""
    residencies: int = 256
    """Stays of fills remembered for the horizon."""
    keep: float = 0.995
    """Weight of older counts against one new observation: about 200 observations are remembered."""
    surprise_drift: float = 0.5
    surprise_limit: float = 8.0
    """A class starts anew when its residuals, in units of their own spread, sum to so much in one direction
    (a cumulative sum with that drift). By chance that happens once in about 20,000 trials; a shift of four
    spreads shows after three."""
    surprise_clip: float = 4.0
    """One outlier alone is no turn."""
