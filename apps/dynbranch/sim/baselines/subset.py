"""Which main requests SPAgent speculates on: the subset with the greatest sum of what each is expected to
save, less what the speculation of all of them holds up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Main:
    """A request whose reasoning runs. ``rate``: how often one sampled action is right. ``act_s``: how long an
    action takes. ``prefill_s``: what the samples of it add to prefill."""

    key: Hashable
    rate: float
    act_s: float
    prefill_s: float = 0.0

    def saves_s(self, samples: int) -> float:
        """(1 - (1 - p)^k) · t_act."""
        return float((1 - (1 - self.rate) ** samples) * self.act_s)


def chosen(mains: Sequence[Main], samples: int, decode_s: Callable[[int], float]) -> tuple[Main, ...]:
    """``decode_s``: what the decodes of so many speculated requests hold up, in seconds over all. The cost
    counts how many are chosen and not which, so that the best subset is the best beginning of their order by
    gain."""
    order = sorted(mains, key=lambda main: main.prefill_s - main.saves_s(samples))
    best, best_count, total = 0.0, 0, 0.0
    for count, main in enumerate(order, 1):
        total += main.saves_s(samples) - main.prefill_s
        worth = total - decode_s(count)
        if worth > best:
            best, best_count = worth, count
    return tuple(order[:best_count])
