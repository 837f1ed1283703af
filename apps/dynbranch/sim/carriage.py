"""Messages through the real wire codecs: what a value becomes when it is serialised, sent and read again."""

from __future__ import annotations

from typing import Any

from dynbranch.csl.core.events import ReleaseLeases, RenewLeases, Write
from dynbranch.domain.engine import GenerationEvents, GenerationOrder
from dynbranch.domain.reuse import Commit, Committed, Demand, Hit, Live, Miss, Refused, WriteResult
from dynbranch.wire import csl, engine_agent


def unchanged(message: object) -> object:
    """Values are frozen: they can be handed over as they are."""
    return message


def over_the_wire(message: object) -> object:
    match message:
        case Demand():
            return csl.demand_in(_sent(csl.demand_out(message)))
        case Hit() | Live() | Miss():
            return csl.demand_outcome_in(_sent(csl.demand_outcome_out(message)))
        case Commit():
            return csl.commit_in(_sent(csl.commit_out(message)))
        case Committed() | Refused():
            return csl.commit_outcome_in(_sent(csl.commit_outcome_out(message)))
        case Write(records, reporter):
            return Write(*csl.write_in(_sent(csl.write_out(records, reporter))))
        case WriteResult():
            return csl.write_result_in(_sent(csl.write_result_out(message)))
        case RenewLeases(lease_ids, ttl_ms):
            return RenewLeases(*csl.renew_in(_sent(csl.renew_out(lease_ids, ttl_ms))))
        case ReleaseLeases(lease_ids):
            return ReleaseLeases(csl.release_in(_sent(csl.release_out(lease_ids))))
        case GenerationOrder():
            return engine_agent.order_in(_sent(engine_agent.order_out(message)))
        case GenerationEvents():
            return engine_agent.events_in(_sent(engine_agent.events_out(message)))
        case frozenset():
            return csl.unknown_leases_in(_sent(csl.unknown_leases_out(message)))
        case _:
            return message


def _sent(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())
