"""What the library holds beside its rows. Losing it costs duplicates and edges, never a wrong result."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from dynbranch.csl.core import commit, graph, rows
from dynbranch.csl.core.arrivals import FirstArrivals
from dynbranch.csl.core.cascade import Condemned
from dynbranch.csl.core.consumed import Consumed
from dynbranch.csl.core.counters import Counters
from dynbranch.csl.core.heat import Heat
from dynbranch.csl.core.leases import LeaseRow, LeaseTable
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.planning import Planning
from dynbranch.csl.core.provenance import Provenance
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Meta, Node
from dynbranch.csl.core.shadows import Shadows
from dynbranch.csl.core.store import Transaction, View
from dynbranch.domain.errors import Conflict, InvalidRequest
from dynbranch.domain.fills import SUPERSEDED
from dynbranch.domain.ids import FillId, GenerationId, Instant, Name
from dynbranch.domain.reuse import Commit, GenerationRef, Incarnation, Refused

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Memory:
    """Shared by the parts of the library. ``new_id`` makes lease ids and draws eviction samples.

    ``tombstones`` are fills that were discarded, in case they begin only later. ``served_fills`` are fills of
    which a demand promoted, adopted or consumed a stage. ``consumed`` answers the same demand for a sampled
    stage again, also when what it took over has ended: another draw in its place would depend on how long
    that one took.
    """

    def __init__(self, *, limits: Limits, new_id: Callable[[], bytes]) -> None:
        self.limits = limits
        self.new_id = new_id
        self.counters = Counters()
        self.leases = LeaseTable(max_leases=limits.max_leases)
        self.provenance = Provenance(
            max_workflows=limits.max_provenance_workflows, max_outputs=limits.max_provenance_outputs
        )
        self.heat = Heat()
        self.arrivals = FirstArrivals(
            max_workflows=limits.max_workflows, max_deferred=limits.max_deferred_arrivals
        )
        self.condemned: dict[Name, int] = {}
        self.slices: dict[int, tuple[Condemned, ...]] = {}
        self.planning: Planning | None = None
        self.shadows = Shadows()
        self.tombstones: OrderedDict[FillId, None] = OrderedDict()
        self.served_fills: OrderedDict[FillId, None] = OrderedDict()
        self.reader_epoch = 0
        self.consumed = Consumed(max_count=limits.max_consumed, max_bytes=limits.max_consumed_bytes)

    def node(self, view: View, name: Name) -> EntryRow | None:
        """What stands under the name, shadows among it: not what is only waiting to be deleted."""
        entry = rows.read_entry(view, name)
        if entry is not None and self.condemned.get(name) == entry.number:
            return None
        return entry

    def entry(self, view: View, name: Name) -> EntryRow | None:
        """The entry that may be served."""
        entry = self.node(view, name)
        return None if entry is None or entry.is_shadow else entry

    def is_live(self, view: View, incarnation: Incarnation) -> bool:
        entry = self.entry(view, incarnation.name)
        return entry is not None and entry.number == incarnation.number

    def stands(self, view: View, incarnation: Incarnation) -> bool:
        """The same with shadows: what a fill may be built from."""
        node = self.node(view, incarnation.name)
        return node is not None and node.number == incarnation.number

    @property
    def may_take_away(self) -> bool:
        """Whether entries may go for want of room or for age: not while a write relies on what it found."""
        return not self.slices and self.planning is None

    def is_falling(self, name: Name) -> bool:
        """Whether the write under way has found that the entry goes."""
        return self.planning is not None and self.planning.is_dead(name)

    def put_derivation(self, transaction: Transaction, node: Node, derivation: DerivationRow) -> None:
        graph.put_derivation(transaction, node, derivation)
        if self.planning is not None:
            self.planning.committed(node, derivation)

    def judge(self, event: Commit, row: LeaseRow | None, view: View, meta: Meta) -> DerivationRow | Refused:
        """The derivation that the commit would store, or why it may not."""
        lease = event.lease if row is None else row.lease
        stands = self.is_live if lease.fill is None else self.stands
        return commit.judge(event, row, view, meta, self.limits, lambda one: stands(view, one))

    def new_generation(self, intended: GenerationRef) -> GenerationRef:
        """Each lease names a generation of its own, at the place that the demand intends.

        A copy of a demand may come when its generation has long ended. If it were granted that very
        generation, followers would find the old log, and with it what was read before later writes.
        """
        return GenerationRef(GenerationId(self.new_id()), intended.agent_address)

    def meet_reader(self, epoch: int) -> bool:
        """A controller asks. Returns whether it is a newer one than before. Raises Conflict when it is not
        the newest that was heard of: what two of them make of one outbox each sees half.

        After a restart the first to ask has the store until a newer one does.
        """
        if epoch and epoch < self.reader_epoch:
            raise Conflict(
                SUPERSEDED,
                "a newer controller has this store",
                advice="Stop one of the two controllers, or give each a store of its own.",
            )
        newer = epoch > self.reader_epoch
        self.reader_epoch = max(epoch, self.reader_epoch)
        return newer

    def bury(self, fill: FillId) -> None:
        remember(self.tombstones, fill, None, self.limits.max_tombstones)

    def note_served(self, fill: FillId) -> None:
        remember(self.served_fills, fill, None, self.limits.max_tombstones)


def remember(known: OrderedDict[_Key, _Value], key: _Key, value: _Value, at_most: int) -> None:
    """The longest known goes first."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > at_most:
        known.popitem(last=False)


def after(now: Instant, ttl_ms: int) -> Instant:
    return Instant(now + ttl_ms / 1000.0)


def check_name(name: Name) -> None:
    if len(name) != rows.NAME_BYTES:
        raise InvalidRequest("bad_name", f"a name has {rows.NAME_BYTES} bytes, this one {len(name)}")
