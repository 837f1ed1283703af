"""What a write fells, found in steps while demands and commits go on (paper §3.2, Prop. A.5).

A write removes every derivation that read a written record, every entry left without a derivation, and
every derivation that needed such an entry, transitively. Producer numbers are always smaller than their
children's, so the graph has no cycle and an entry that still has a derivation is truly supported.

Until the last step nothing is decided: demands hit what stands, and the plan stays right because

- nothing but the plan takes entries or derivations away (eviction and expiry wait);
- every commit is told to the plan. What it read or needed is looked at before the next node is, and children
  that came too late for the frozen index are kept beside it;
- no execution is recorded as one more support of an entry that the plan has found without one. Such a commit
  is answered as always: the entry stood when it came.

Single rows are read as they are now, index rows from a frozen view, which has one cheap iterator. Steps
together cost O(|W| + |A| + |E_A|); each costs what its budget of nodes allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dynbranch.csl.core import cascade, graph, history, rows, versions
from dynbranch.csl.core.cascade import Condemned
from dynbranch.csl.core.rows import DerivationRow, Meta, Node
from dynbranch.csl.core.store import Inconsistent, Transaction, View
from dynbranch.csl.core.written import Written
from dynbranch.domain.ids import Name, RecordId, UnixMs, Version, is_whole, source_of, whole
from dynbranch.domain.reuse import Incarnation, Invalidation

Cause = RecordId | Incarnation
"""Why a derivation fell: the record that it read, or the producer that it needed."""

PAGE_ROWS = 64
"""Index rows read at once."""

_ROWS_PER_NODE = 8
"""So many plain rows cost about as much as one node."""


@dataclass(frozen=True, slots=True)
class Writing:
    """One write under way. ``records`` is None when every read of any record counts as written.

    ``version`` is the one that the write will have.
    """

    records: tuple[RecordId, ...] | None
    version: Version
    at: UnixMs
    reporter: str


@dataclass(frozen=True, slots=True)
class _IndexRange:
    """Index rows still to be read. ``cause`` is None where each row's own record is the cause."""

    prefix: bytes
    cause: Cause | None
    start: bytes = b""


class Planning:
    """``step`` until it returns True, then take what it found. ``staged`` holds the rows that are ready.

    ``dead`` keeps the order in which entries were found. ``part_nodes`` condemned entries make one part.
    """

    def __init__(
        self,
        writing: Writing,
        staged: Transaction,
        meta: Meta,
        *,
        max_history: int,
        max_new_history: int,
        part_nodes: int,
        is_shadow: Callable[[Name], bool],
    ) -> None:
        self.writing = writing
        self._written = None if writing.records is None else Written(writing.records)
        self.staged = staged
        self.dead: dict[Name, int] = {}
        self.whole: list[Condemned] = []
        self.packed: list[bytes] = []
        self.new_versions = 0
        self.direct = 0
        self._meta = meta
        self._max_history = max_history
        self._history_left = min(max_new_history, max_history)
        self._part_nodes = part_nodes
        self._is_shadow = is_shadow
        self._lost: dict[Name, set[int]] = {}
        self._heads: dict[Name, tuple[int, int]] = {}
        self._partial: set[Name] = set()
        self._pending: list[tuple[Node, Cause]] = []
        self._unstamped = list(writing.records or ())
        self._ranges = list(_readers(writing))
        self._came: list[tuple[Node, DerivationRow]] = []
        self._late_children: dict[Incarnation, list[Node]] = {}

    # What goes on beside the plan

    def committed(self, node: Node, derivation: DerivationRow) -> None:
        """A commit has put this derivation, or will have before the next step."""
        self._came.append((node, derivation))

    def is_dead(self, name: Name) -> bool:
        return name in self.dead

    # Steps

    def step(self, view: View, index: View, nodes: int) -> bool:
        """Look at about so many nodes. True when nothing is left to look at; a commit may change that."""
        self._admit_late_comers(view)
        budget = nodes * _ROWS_PER_NODE
        while budget > 0:
            if self._pending:
                node, cause = self._pending.pop()
                self._lose(view, node, cause)
                budget -= _ROWS_PER_NODE
            elif self._ranges:
                budget -= _ROWS_PER_NODE + self._read_page(index)
            elif self._unstamped:
                self.new_versions += versions.advance(
                    self.staged, [self._unstamped.pop()], self.writing.version
                )
                budget -= _ROWS_PER_NODE
            else:
                return True
        return not (self._pending or self._ranges or self._unstamped)

    def _read_page(self, index: View) -> int:
        at = self._ranges.pop()
        page = index.page(at.prefix, at.start, PAGE_ROWS)
        if len(page) == PAGE_ROWS:
            following = page[-1][0][len(at.prefix) :] + b"\0"
            self._ranges.append(_IndexRange(at.prefix, at.cause, following))
        for key, _ in reversed(page):
            self._pending.append((rows.node_at_end(key), at.cause or rows.record_of_reader(key)))
        return len(page)

    def _admit_late_comers(self, view: View) -> None:
        came, self._came = self._came, []
        for node, derivation in came:
            if view.get(rows.derivation_key(node)) is None:
                # Its batch could not be applied.
                continue
            if node.name in self._heads:
                self._heads[node.name] = self._head(view, node.name)
            for read in derivation.reads:
                written = self._hit_by(read.record)
                if written is not None:
                    self._pending.append((node, written))
            for producer in derivation.producers:
                self._late_children.setdefault(producer, []).append(node)
                if self.dead.get(producer.name) == producer.number:
                    self._pending.append((node, producer))

    def _hit_by(self, record: RecordId) -> RecordId | None:
        """The record to blame when a derivation that read ``record`` falls, as the index ranges have it."""
        if self._written is None:
            return record
        written = self._written.hit_by(record)
        return whole(source_of(record)) if written is not None and is_whole(record) else written

    def _lose(self, view: View, node: Node, cause: Cause) -> None:
        name = node.name
        lost = self._lost.get(name)
        if lost is None:
            self._heads[name] = self._head(view, name)
            lost = self._lost[name] = set()
            self._partial.add(name)
        if node.derivation in lost:
            return
        lost.add(node.derivation)
        self.direct += not isinstance(cause, Incarnation)
        number, derivations = self._heads[name]
        if name in self.dead or len(lost) < derivations:
            return
        self.dead[name] = number
        self._partial.discard(name)
        itself = Incarnation(name, number)
        self._condemn(Condemned(itself, True, ()))
        if self._history_left > 0 and not self._is_shadow(name):
            # That a shadow was here is nobody's business.
            self._remember(view, itself, cause)
        self._ranges.append(_IndexRange(rows.children_prefix(itself), itself))
        for child in self._late_children.get(itself, ()):
            self._pending.append((child, itself))

    def _head(self, view: View, name: Name) -> tuple[int, int]:
        row = view.get(rows.entry_key(name))
        if row is None:
            raise Inconsistent(f"an index row points to {name.hex()}, which is not stored")
        return rows.entry_head(row)

    def _condemn(self, node: Condemned) -> None:
        self.whole.append(node)
        if len(self.whole) % self._part_nodes == 0:
            self.packed.append(cascade.pack_condemned(self.whole[-self._part_nodes :]))

    def _remember(self, view: View, itself: Incarnation, cause: Cause) -> None:
        """Write down why an entry goes."""
        self._history_left -= 1
        lost = cause if isinstance(cause, Incarnation) else None
        row = Invalidation(
            incarnation_number=itself.number,
            at=self.writing.at,
            version=self.writing.version,
            record=None if isinstance(cause, Incarnation) else cause,
            lost_producer=lost,
            label=graph.require_entry(view, itself.name).label,
            reporter=self.writing.reporter,
        )
        self._meta = history.append(self.staged, self._meta, itself.name, row, max_rows=self._max_history)

    # What was found

    @property
    def history(self) -> tuple[int, int]:
        """First and next number of the history, with the staged rows."""
        return self._meta.history_first, self._meta.history_next

    @property
    def derivations(self) -> int:
        return sum(map(len, self._lost.values()))

    def partial(self) -> list[Condemned]:
        """Entries that lose some derivations and stand on others."""
        return [
            Condemned(Incarnation(name, self._heads[name][0]), False, tuple(sorted(self._lost[name])))
            for name in sorted(self._partial)
        ]

    def parts(self) -> Iterator[tuple[tuple[Condemned, ...], bytes]]:
        """Everything condemned, in parts, each with its row."""
        size = self._part_nodes
        for number, packed in enumerate(self.packed):
            yield tuple(self.whole[number * size : (number + 1) * size]), packed
        rest = [*self.whole[len(self.packed) * size :], *self.partial()]
        for first in range(0, len(rest), size):
            part = tuple(rest[first : first + size])
            yield part, cascade.pack_condemned(part)


def _readers(writing: Writing) -> Iterable[_IndexRange]:
    """The parts of the reverse index whose derivations fall, the last to be read first."""
    records = writing.records
    if records is None:
        return (_IndexRange(rows.READERS, None),)
    sources = {source_of(record) for record in records if is_whole(record)}
    rest = [record for record in records if source_of(record) not in sources]
    collections = sorted({source_of(record) for record in rest})
    return (
        *(_IndexRange(rows.readers_prefix(whole(source)), whole(source)) for source in collections),
        *(_IndexRange(rows.readers_prefix(record), record) for record in reversed(rest)),
        *(
            _IndexRange(rows.readers_of_source_prefix(source), whole(source))
            for source in sorted(sources, reverse=True)
        ),
    )
