"""Which confirmed outputs were served in which workflow, to find what a later input was built from.

Bounded and in memory: what is forgotten costs an edge, and the text of an unmatched block is in the name,
so the result stays exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from dynbranch.csl.core.leases import WorkflowKey
from dynbranch.domain.ids import Digest
from dynbranch.domain.reuse import Incarnation

_Outputs = OrderedDict[Digest, tuple[Incarnation, ...]]


class Provenance:
    """The least recently used workflow goes first, and within a workflow the oldest output.

    One text may be the output of several entries. All of the last ``max_same`` count as producers: which of
    them the harness copied can not be told, and one producer too many only invalidates more.
    """

    def __init__(self, *, max_workflows: int, max_outputs: int, max_same: int = 4) -> None:
        self._max_workflows = max_workflows
        self._max_outputs = max_outputs
        self._max_same = max_same
        self._workflows: OrderedDict[WorkflowKey, _Outputs] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workflows)

    def served(self, workflow: WorkflowKey, digests: Iterable[Digest], incarnation: Incarnation) -> None:
        """The entry's output went to the workflow."""
        if not workflow[1]:
            return
        outputs = self._workflows.setdefault(workflow, OrderedDict())
        self._workflows.move_to_end(workflow)
        if len(self._workflows) > self._max_workflows:
            self._workflows.popitem(last=False)
        for digest in digests:
            others = tuple(one for one in outputs.pop(digest, ()) if one.name != incarnation.name)
            outputs[digest] = (*others, incarnation)[-self._max_same :]
            if len(outputs) > self._max_outputs:
                outputs.popitem(last=False)

    def producers(self, workflow: WorkflowKey, digests: Iterable[Digest]) -> tuple[Incarnation, ...]:
        """Entries whose outputs the blocks may be copies of, in name order. They may be gone by now."""
        outputs = self._workflows.get(workflow)
        if outputs is None:
            return ()
        self._workflows.move_to_end(workflow)
        return tuple(sorted({one for digest in digests for one in outputs.get(digest, ())}))
