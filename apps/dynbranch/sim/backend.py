"""The owner of the records. It applies a write, reports it, and only then acknowledges it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dynbranch.clients.ports import Unreachable
from dynbranch.csl.core.events import Write
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import RecordId, Version, is_whole, source_of
from dynbranch.domain.reuse import WriteResult
from dynbranch.sim.csl_node import FIRST_EPOCH, CslNode
from dynbranch.sim.heap import EventHeap
from dynbranch.sim.judge import Truth
from dynbranch.sim.network import Failure, Network, Node, Respond
from dynbranch.sim.stages import RECORDS
from dynbranch.sim.trace import Trace

REPORT_S = 0.5
FIRST_BACK_OFF_S = 0.02


class Backend(Node):
    """``reported``: the store's version of the last acknowledged write to each record."""

    def __init__(
        self, heap: EventHeap, rng: Random, network: Network, csl: CslNode, truth: Truth, trace: Trace
    ) -> None:
        super().__init__("backend", heap)
        self._rng = rng
        self._network = network
        self._csl = csl
        self._truth = truth
        self._trace = trace
        self.reported: dict[RecordId, Version] = dict.fromkeys(RECORDS, Version(FIRST_EPOCH, 0))
        self.unreported = 0

    def write(self, record: RecordId, acknowledged: Callable[[], None]) -> None:
        written = (
            [one for one in RECORDS if source_of(one) == source_of(record)] if is_whole(record) else [record]
        )
        for one in written:
            self._truth.current[one] += 1
        versions = {one: self._truth.current[one] for one in written}
        self._trace.note(self.name, "applied", *(f"{one}={version}" for one, version in versions.items()))
        self.unreported += 1
        self._report(record, versions, acknowledged, FIRST_BACK_OFF_S)

    def _report(
        self,
        record: RecordId,
        versions: dict[RecordId, int],
        acknowledged: Callable[[], None],
        back_off_s: float,
    ) -> None:
        def handle(event: Write, respond: Respond[WriteResult]) -> None:
            self._csl.write(event, respond, lambda: self._truth.acknowledge(versions))

        def done(outcome: WriteResult | Failure) -> None:
            if isinstance(outcome, Unreachable | DomainError):
                again = min(1.0, back_off_s * 2)
                self.later(back_off_s, lambda: self._report(record, versions, acknowledged, again))
                return
            self.unreported -= 1
            for one, version in versions.items():
                if version == self._truth.current[one]:
                    self.reported[one] = max(self.reported[one], outcome.version)
            acknowledged()

        event = Write((record,), self.name)
        self._network.call(self, self._csl, event, handle, done, timeout_s=REPORT_S)
