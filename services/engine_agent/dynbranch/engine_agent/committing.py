"""From a finished log to what the store keeps of it."""

from __future__ import annotations

from collections.abc import Sequence

from dynbranch.domain.engine import GenerationOrder, WireProtocol
from dynbranch.domain.ids import Digest
from dynbranch.domain.reuse import Commit, Level
from dynbranch.engine_agent.core.messages import CommitResult
from dynbranch.naming.chunks import MalformedLog, compact, encode_payload, output_digests, result_digest
from dynbranch.naming.completion import says_the_same
from dynbranch.naming.content import body_digest


def commit_of(
    effect: CommitResult, order: GenerationOrder, items: Sequence[bytes], level: Level, origin: str = ""
) -> Commit:
    """``origin`` names the execution's span. Raises MalformedLog (a ValueError) for a log that is not what
    its protocol says."""
    if order.protocol is WireProtocol.TOOL:
        (body,) = items
        digest = body_digest(body)
        payload, label = encode_payload((body,), origin), f"tool {order.target}"
        digests: tuple[Digest, ...] = (digest,)
    else:
        log = compact(items)
        if not says_the_same(items, log):
            raise MalformedLog("its recorded form would not say what the engine said")
        digest, digests = result_digest(log), output_digests(log)
        payload, label = encode_payload(log, origin), f"chat {order.target}"
    return Commit(
        lease=effect.lease,
        payload=payload,
        payload_digest=digest,
        level=level,
        execution_ms=effect.execution_ms,
        label=label,
        reads=effect.reads,
        output_digests=digests,
    )
