"""engine_agent.proto ⇄ domain. ``…_out`` makes a message of a value, ``…_in`` a value of a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from dynbranch.domain.engine import (
    Aborted,
    AbortOrder,
    AbortResult,
    AgentDescription,
    AgentKind,
    AttachOrder,
    Completed,
    Failed,
    Freshness,
    GenerationEnd,
    GenerationEvents,
    GenerationOrder,
    ModelDescription,
    Occupancy,
    ToolDescription,
    WireProtocol,
    WorkClass,
)
from dynbranch.domain.ids import GenerationId
from dynbranch.domain.reuse import Fingerprint
from dynbranch.v1 import engine_agent_pb2 as pb
from dynbranch.wire import shared

MAX_ATTACH_WAIT_MS = 50

# Describe


def description_out(description: AgentDescription) -> pb.DescribeResponse:
    return pb.DescribeResponse(
        kind=description.kind.value,
        revision=description.revision,
        bypass_url=description.bypass_url,
        ready=description.ready,
        not_ready_reason=description.not_ready_reason,
        models=[_model_out(model) for model in description.models],
        tools=[_tool_out(tool) for tool in description.tools],
        slots=description.slots,
    )


def description_in(message: pb.DescribeResponse) -> AgentDescription:
    try:
        kind = AgentKind(message.kind)
    except ValueError:
        raise shared.malformed(f"agent kind {message.kind[:80]!r} is not known") from None
    return AgentDescription(
        kind=kind,
        revision=message.revision,
        bypass_url=message.bypass_url,
        ready=message.ready,
        not_ready_reason=message.not_ready_reason,
        models=tuple(_model_in(model) for model in message.models),
        tools=tuple(_tool_in(tool) for tool in message.tools),
        slots=message.slots,
    )


def fingerprint_out(fingerprint: Fingerprint) -> pb.Fingerprint:
    return pb.Fingerprint(facts=dict(fingerprint.facts), level=shared.level_out(fingerprint.level))


def fingerprint_in(message: pb.Fingerprint) -> Fingerprint:
    return Fingerprint(tuple(sorted(message.facts.items())), shared.level_in(message.level))


def _model_out(model: ModelDescription) -> pb.ModelDescription:
    return pb.ModelDescription(
        id=model.id,
        aliases=model.aliases,
        fingerprint=fingerprint_out(model.fingerprint),
        context_tokens=model.context_tokens,
        equivalences=sorted(model.equivalences),
        not_reusable_reason=model.not_reusable_reason,
    )


def _model_in(message: pb.ModelDescription) -> ModelDescription:
    return ModelDescription(
        id=message.id,
        fingerprint=fingerprint_in(message.fingerprint),
        aliases=tuple(message.aliases),
        context_tokens=message.context_tokens,
        equivalences=frozenset(message.equivalences),
        not_reusable_reason=message.not_reusable_reason,
    )


def _tool_out(tool: ToolDescription) -> pb.ToolDescription:
    return pb.ToolDescription(
        name=tool.name,
        fingerprint=fingerprint_out(tool.fingerprint),
        source=tool.source,
        freshness=tool.freshness.value,
        description=tool.description,
    )


def _tool_in(message: pb.ToolDescription) -> ToolDescription:
    try:
        freshness = Freshness(message.freshness)
    except ValueError:
        raise shared.malformed(f"freshness {message.freshness[:80]!r} is not known") from None
    return ToolDescription(
        name=message.name,
        fingerprint=fingerprint_in(message.fingerprint),
        source=message.source,
        freshness=freshness,
        description=message.description,
    )


# Generate and attach

_PROTOCOLS: tuple[tuple[WireProtocol, pb.Protocol.ValueType], ...] = (
    (WireProtocol.CHAT_COMPLETIONS, pb.PROTOCOL_CHAT_COMPLETIONS),
    (WireProtocol.TOOL, pb.PROTOCOL_TOOL),
)

_WORK_CLASSES: tuple[tuple[WorkClass, pb.WorkClass.ValueType], ...] = (
    (WorkClass.CANONICAL, pb.WORK_CLASS_CANONICAL),
    (WorkClass.FILL, pb.WORK_CLASS_FILL),
    (WorkClass.DRAFT, pb.WORK_CLASS_DRAFT),
)


MAX_HINT_BYTES = 64


def order_out(order: GenerationOrder) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        generation_id=order.generation_id,
        protocol=next(coded for known, coded in _PROTOCOLS if known is order.protocol),
        target=order.target,
        body=order.body,
        fingerprint_digest=order.fingerprint_digest,
        lease=None if order.lease is None else shared.lease_out(order.lease),
        identity=shared.identity_out(order.identity),
        detach_grace_ms=order.detach_grace_ms,
        forward_headers=dict(order.forward_headers),
        work=next(coded for known, coded in _WORK_CLASSES if known is order.work),
        cache_scope=order.cache_scope,
        prompt_hint=order.prompt_hint,
        quiet=order.quiet,
        reserve_tokens=order.reserve_tokens,
    )


def order_in(message: pb.GenerateRequest) -> GenerationOrder:
    protocol = next((known for known, coded in _PROTOCOLS if coded == message.protocol), None)
    if protocol is None:
        raise shared.malformed(f"protocol {message.protocol} is not known")
    coded_work = message.work or pb.WORK_CLASS_CANONICAL
    work = next((known for known, coded in _WORK_CLASSES if coded == coded_work), None)
    if work is None:
        raise shared.malformed(f"work class {message.work} is not known")
    if len(message.prompt_hint) > MAX_HINT_BYTES:
        raise shared.malformed(f"a prompt hint has at most {MAX_HINT_BYTES} bytes")
    return GenerationOrder(
        generation_id=shared.generation_id_in(message.generation_id),
        protocol=protocol,
        target=message.target,
        body=message.body,
        fingerprint_digest=shared.digest_in(message.fingerprint_digest),
        identity=shared.identity_in(message.identity),
        lease=shared.lease_in(message.lease) if message.HasField("lease") else None,
        detach_grace_ms=message.detach_grace_ms,
        forward_headers=tuple(sorted(message.forward_headers.items())),
        work=work,
        cache_scope=message.cache_scope,
        prompt_hint=message.prompt_hint,
        quiet=message.quiet,
        reserve_tokens=message.reserve_tokens,
    )


def attach_out(order: AttachOrder) -> pb.AttachRequest:
    return pb.AttachRequest(
        generation_id=order.generation_id,
        from_item=order.from_item,
        wait_ms=order.wait_ms,
        adopts=order.adopts,
        quiet=order.quiet,
    )


def attach_in(message: pb.AttachRequest) -> AttachOrder:
    """It waits 50 ms at most."""
    return AttachOrder(
        generation_id=shared.generation_id_in(message.generation_id),
        from_item=message.from_item,
        wait_ms=min(message.wait_ms, MAX_ATTACH_WAIT_MS),
        adopts=message.adopts,
        quiet=message.quiet,
    )


# Many calls on one stream


def _carried(trace: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The W3C headers of the caller's span are fields of the same names."""
    return dict(trace)


def generate_ask(order: GenerationOrder, trace: Iterable[tuple[str, str]] = ()) -> pb.GenerationAsk:
    """The number of the call is not set yet."""
    return pb.GenerationAsk(generate=order_out(order), **_carried(trace))


def attach_ask(
    generation: GenerationId,
    from_item: int,
    wait_ms: int,
    trace: Iterable[tuple[str, str]] = (),
    *,
    adopts: bool = False,
    quiet: bool = False,
) -> pb.GenerationAsk:
    """The number of the call is not set yet."""
    order = AttachOrder(generation, from_item, wait_ms, adopts, quiet)
    return pb.GenerationAsk(attach=attach_out(order), **_carried(trace))


def asks_out(asks: list[pb.GenerationAsk]) -> pb.EngineAgentServiceConverseRequest:
    return pb.EngineAgentServiceConverseRequest(asks=asks)


def answers_in(
    message: pb.EngineAgentServiceConverseResponse,
) -> Iterator[tuple[int, pb.GenerationAnswer]]:
    return ((answer.call, answer) for answer in message.answers)


def answer_in(answer: pb.GenerationAnswer) -> GenerationEvents:
    return events_in(answer.events)


def items_of(answer: pb.GenerationAnswer) -> tuple[bytes, ...]:
    """The items of an answer that holds nothing else; none of any other."""
    events = answer.events
    return () if events.traceparent else tuple(events.items)


def generated_out(events: GenerationEvents) -> pb.GenerateResponse:
    return pb.GenerateResponse(events=events_out(events))


def attached_out(events: GenerationEvents) -> pb.AttachResponse:
    return pb.AttachResponse(events=events_out(events))


def followed_in(message: pb.GenerateResponse | pb.AttachResponse) -> GenerationEvents:
    return events_in(message.events)


def events_out(events: GenerationEvents) -> pb.GenerationEvents:
    end = None if events.end is None else _end_out(events.end)
    return pb.GenerationEvents(
        from_item=events.from_item, items=events.items, end=end, traceparent=events.traceparent
    )


def events_in(message: pb.GenerationEvents) -> GenerationEvents:
    end = _end_in(message.end) if message.HasField("end") else None
    return GenerationEvents(message.from_item, tuple(message.items), end, message.traceparent)


def _end_out(end: GenerationEnd) -> pb.GenerationEnd:
    match end:
        case Completed():
            completed = pb.Completed(commit=end.commit)
            return pb.GenerationEnd(completed=completed, execution_ms=end.execution_ms)
        case Failed():
            failed = pb.Failed(
                http_status=end.http_status,
                body=end.body,
                may_retry=end.may_retry,
                content_type=end.content_type,
                retry_after=end.retry_after,
            )
            return pb.GenerationEnd(failed=failed, execution_ms=end.execution_ms)
        case Aborted():
            return pb.GenerationEnd(aborted=pb.Aborted(reason=end.reason), execution_ms=end.execution_ms)
        case _:
            assert_never(end)


def _end_in(message: pb.GenerationEnd) -> GenerationEnd:
    execution_ms = shared.number_in(message.execution_ms, "execution_ms")
    match message.WhichOneof("outcome"):
        case "completed":
            return Completed(message.completed.commit, execution_ms)
        case "failed":
            failed = message.failed
            return Failed(
                http_status=failed.http_status,
                body=failed.body,
                may_retry=failed.may_retry,
                content_type=failed.content_type,
                execution_ms=execution_ms,
                retry_after=failed.retry_after,
            )
        case "aborted":
            return Aborted(message.aborted.reason, execution_ms)
        case None:
            raise shared.malformed("the end of a generation has no outcome")


# Abort and drain


def abort_out(generation: GenerationId, reason: str, *, only_speculative: bool = False) -> pb.AbortRequest:
    return pb.AbortRequest(generation_id=generation, reason=reason, only_speculative=only_speculative)


def abort_in(message: pb.AbortRequest) -> AbortOrder:
    generation = shared.generation_id_in(message.generation_id)
    return AbortOrder(generation, message.reason, message.only_speculative)


def aborted_out(result: AbortResult) -> pb.AbortResponse:
    return pb.AbortResponse(aborted=result.aborted, confirmed_ms=result.confirmed_ms)


def aborted_in(message: pb.AbortResponse) -> AbortResult:
    if not message.HasField("confirmed_ms"):
        return AbortResult(message.aborted)
    return AbortResult(message.aborted, shared.number_in(message.confirmed_ms, "confirmed_ms"))


def drain_out(deadline_s: float) -> pb.DrainRequest:
    return pb.DrainRequest(deadline_ms=max(0, round(deadline_s * 1000)))


def drain_in(message: pb.DrainRequest) -> float:
    """The deadline in seconds from now."""
    return message.deadline_ms / 1000


# Occupancy


def occupancy_out(occupancy: Occupancy) -> pb.WatchOccupancyResponse:
    return pb.WatchOccupancyResponse(
        revision=occupancy.revision,
        ready=occupancy.ready,
        slots=occupancy.slots,
        running=occupancy.running,
        waiting=occupancy.waiting,
        engine_running=occupancy.engine_running,
        engine_waiting=occupancy.engine_waiting,
        kv_used_share=occupancy.kv_used_share,
        fills=occupancy.fills,
        prompt_hints=occupancy.prompt_hints,
        drafts=occupancy.drafts,
        speculative_tokens=occupancy.speculative_tokens,
        fill_slots=occupancy.fill_slots,
        fill_kv_tokens=occupancy.fill_kv_tokens,
    )


def occupancy_in(message: pb.WatchOccupancyResponse) -> Occupancy:
    return Occupancy(
        revision=message.revision,
        ready=message.ready,
        slots=message.slots,
        running=message.running,
        waiting=message.waiting,
        engine_running=message.engine_running if message.HasField("engine_running") else None,
        engine_waiting=message.engine_waiting if message.HasField("engine_waiting") else None,
        kv_used_share=message.kv_used_share if message.HasField("kv_used_share") else None,
        fills=message.fills,
        prompt_hints=tuple(message.prompt_hints),
        drafts=message.drafts,
        speculative_tokens=message.speculative_tokens,
        fill_slots=message.fill_slots,
        fill_kv_tokens=message.fill_kv_tokens if message.HasField("fill_kv_tokens") else None,
    )
