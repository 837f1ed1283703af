"""What an arm spends beside the calls that harnesses make."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynbranch.sim.fleet.accounts import Account, Accounts, total


@dataclass(slots=True)
class Spending:
    """``accounts``: of each workflow; a fill is a foretold action, its stages are the action's calls or the
    target's next step.

    ``drafts``: predictions of a model of its own, which take ``drafting_s`` beside the engines. ``samples``:
    predictions that the target itself makes; the engines' seconds for them are in the accounts.
    ``hits``: calls answered from a cache. ``prefilled``: answers that were computed before anything was
    measured.
    """

    accounts: Accounts = field(default_factory=Accounts)
    drafts: int = 0
    drafting_s: float = 0.0
    samples: int = 0
    hits: int = 0
    prefilled: int = 0

    def of(self, number: int) -> Account:
        return self.accounts.workflows[number]

    @property
    def total(self) -> Account:
        return total(self.accounts.workflows)

    @property
    def extra_s(self) -> float:
        """Engine seconds that no answer was made of."""
        whole = self.total
        return whole.discarded_s + whole.draft_s
