"""First arrivals of workflows, also while there is no room to write them down."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.csl.core import demand, rows
from dynbranch.csl.core.rows import Meta
from dynbranch.csl.core.store import Batch, Transaction, View
from dynbranch.domain.ids import Version
from dynbranch.domain.reuse import Identity


class FirstArrivals:
    """Those that wait for room are kept here, at most ``max_deferred`` of them."""

    def __init__(self, *, max_workflows: int, max_deferred: int) -> None:
        self._max_workflows = max_workflows
        self._max_deferred = max_deferred
        self._deferred: dict[bytes, Version] = {}
        self._lost = False

    def of(self, transaction: Transaction, view: View, meta: Meta, identity: Identity) -> Version | None:
        """Where the store stood when the workflow first arrived; None when that is not known.

        A new one is put into the transaction, which must be durable before anybody relies on it.
        """
        if self._deferred:
            key = rows.arrival_key(identity.tenant, identity.workflow_id)
            if key in self._deferred and view.get(key) is None:
                self.put_deferred(transaction, view, meta)
                return self._deferred[key]
        most = 0 if self._lost else self._max_workflows
        stamped, first_arrival = demand.register_arrival(transaction, meta, identity, max_workflows=most)
        if stamped is not meta:
            self.put_deferred(transaction, view, stamped)
        return first_arrival

    def defer(self, refused: Batch) -> None:
        """The batch of a demand could not be written, as on a full disk; the demand is answered all the same.

        First arrivals in it are kept here, and go with the next batch before any write: a workflow that came
        before a write must not look as if it had come after. Beyond the bound, and until the process ends,
        no new workflow has a known first arrival.
        """
        for key, value in refused.changes.items():
            if not key.startswith(rows.ARRIVALS) or value is None or key in self._deferred:
                continue
            if len(self._deferred) >= self._max_deferred:
                self._lost = True
                return
            self._deferred[key] = rows.unpack_version(value)

    def put_deferred(self, transaction: Transaction, view: View, meta: Meta) -> None:
        """Put the meta, and with it the first arrivals that wait for room."""
        written = [key for key in self._deferred if view.get(key) is not None]
        for key in written:
            del self._deferred[key]
        for key, version in self._deferred.items():
            if transaction.get(key) is None:
                transaction.put(key, rows.pack_version(version))
                meta = replace(meta, workflows=meta.workflows + 1)
        transaction.put(rows.META, rows.pack_meta(meta))
