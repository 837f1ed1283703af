"""Every domain value that travels, for property tests."""

from __future__ import annotations

from dynbranch.domain import branches, engine, events, fills, reuse
from dynbranch.domain.ids import RecordId, Version
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ids = st.binary(min_size=1, max_size=64)
digests = st.binary(min_size=32, max_size=32)
sources = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
levels = st.sampled_from(reuse.Level)


def several(values: SearchStrategy, **limits: object) -> SearchStrategy:  # type: ignore[type-arg]
    return st.lists(values, max_size=3, **limits).map(tuple)  # type: ignore[arg-type]


def build(kind: type, /, **fields: SearchStrategy) -> SearchStrategy:  # type: ignore[type-arg]
    """Every field is named here, so that a new field of a value fails until it travels too."""
    assert fields.keys() == kind.__dataclass_fields__.keys(), kind  # type: ignore[attr-defined]
    return st.builds(kind, **fields)


records = st.builds(lambda source, key: RecordId(f"{source}/{key}"), sources, keys)
versions = build(Version, epoch=u64, sequence=u64)
reads = build(reuse.Read, record=records, as_of=versions)
declared = build(reuse.DeclaredRead, record=records, as_of=st.none() | versions)
incarnations = build(reuse.Incarnation, name=digests, number=u64)
identities = build(
    reuse.Identity,
    tenant=words.filter(bool),
    workflow_type_id=words,
    workflow_id=words,
    agent_id=words,
    stage=words,
    parent_id=words,
)
scopes = build(reuse.ReadScope, declared=several(declared), sources=several(sources))
generations = build(reuse.GenerationRef, generation_id=ids, agent_address=words)
origins = build(reuse.FillOrigin, branch_id=ids, trial_id=ids, fill_id=ids, stage=u32, traceparent=words)
leases = build(
    reuse.Lease,
    lease_id=ids,
    name=digests,
    generation=generations,
    read_token=versions,
    scope=scopes,
    producers=several(incarnations),
    ttl_ms=u32,
    fill=st.none() | origins,
    once=st.booleans(),
    shadow_ttl_ms=u32,
)

demands = build(
    reuse.Demand,
    demand_id=ids,
    name=digests,
    identity=identities,
    scope=scopes,
    intended=generations,
    input_digests=several(digests),
    exclude_generations=st.frozensets(ids, max_size=3),
    may_execute=st.booleans(),
    may_hit=st.booleans(),
    once=st.booleans(),
)
hits = build(
    reuse.Hit,
    incarnation=incarnations,
    payload=st.binary(),
    level=levels,
    execution_ms=numbers,
    created=u64,
    promoted=st.none() | origins,
)
demand_outcomes = (
    hits
    | build(reuse.Live, generation=generations, adopted=st.none() | origins)
    | build(reuse.Miss, lease=st.none() | leases)
)
begun_fills = build(
    fills.BeginFill,
    origin=origins,
    name=digests,
    identity=identities,
    scope=scopes,
    intended=generations,
    input_digests=several(digests),
    producers=several(incarnations),
    once=st.booleans(),
    shadow_ttl_ms=u32,
    reader_epoch=u64,
)
fill_outcomes = (
    build(fills.FillGranted, lease=leases)
    | build(
        fills.FillKnown,
        incarnation=incarnations,
        payload=st.binary(),
        shadow=st.booleans(),
        level=levels,
        execution_ms=numbers,
    )
    | build(fills.FillLive, generation=generations)
    | build(fills.FillRefused, reason=st.sampled_from(fills.FillRefusal), detail=words)
)
discards = build(fills.DiscardFills, fill_ids=several(ids), reason=st.sampled_from(fills.DiscardReason))
discarded = build(
    fills.DiscardResult,
    abort=several(generations),
    discarded_shadows=u32,
    immune=st.frozensets(ids, max_size=3),
)
settlements = build(
    fills.Settlement,
    number=u64,
    kind=st.sampled_from(fills.SettlementKind),
    origin=origins,
    at=u64,
    name=digests,
    demanded_by=st.none() | identities,
    execution_ms=numbers,
    generation=st.none() | generations,
    reason=words,
)


@st.composite
def commits(draw: st.DrawFn) -> reuse.Commit:
    """Reads are told exactly when the scope names sources."""
    lease = draw(leases)
    return draw(
        build(
            reuse.Commit,
            lease=st.just(lease),
            payload=st.binary(),
            payload_digest=digests,
            level=levels,
            execution_ms=numbers,
            label=words,
            reads=several(records) if lease.scope.sources else st.none(),
            output_digests=several(digests),
        )
    )


commit_outcomes = build(reuse.Committed, incarnation=incarnations) | build(
    reuse.Refused, reason=st.sampled_from(reuse.Refusal), detail=words
)
write_results = build(
    reuse.WriteResult,
    version=versions,
    invalidated_entries=u64,
    closed_leases=u64,
    invalidated_names=several(digests),
)
derivations = build(
    reuse.Derivation, read_token=versions, reads=several(reads), producers=several(incarnations)
)
entries = build(
    reuse.EntryView,
    incarnation=incarnations,
    label=words,
    level=levels,
    payload_bytes=u64,
    payload_digest=digests,
    created=u64,
    execution_ms=numbers,
    derivations=several(derivations),
)
invalidations = build(
    reuse.Invalidation,
    incarnation_number=u64,
    at=u64,
    version=versions,
    record=st.none() | records,
    lost_producer=st.none() | incarnations,
    label=words,
    reporter=words,
)
inspections = build(
    reuse.Inspection, entry=st.none() | entries, history=several(invalidations), live=several(generations)
)
stats = build(
    reuse.StoreStats,
    version=versions,
    **dict.fromkeys(reuse.StoreStats.__dataclass_fields__.keys() - {"version"}, u64),
)

facts = st.dictionaries(words, words, max_size=3).map(lambda pairs: tuple(sorted(pairs.items())))
fingerprints = build(reuse.Fingerprint, facts=facts, level=levels)
models = build(
    engine.ModelDescription,
    id=words,
    fingerprint=fingerprints,
    aliases=several(words),
    context_tokens=u32,
    equivalences=st.frozensets(words, max_size=3),
    not_reusable_reason=words,
)
tools = build(
    engine.ToolDescription,
    name=words,
    fingerprint=fingerprints,
    source=words,
    freshness=st.sampled_from(engine.Freshness),
    description=words,
)
descriptions = build(
    engine.AgentDescription,
    kind=st.sampled_from(engine.AgentKind),
    revision=u64,
    bypass_url=words,
    ready=st.booleans(),
    not_ready_reason=words,
    models=several(models),
    tools=several(tools),
    slots=u32,
)
orders = build(
    engine.GenerationOrder,
    generation_id=ids,
    protocol=st.sampled_from(engine.WireProtocol),
    target=words,
    body=st.binary(),
    fingerprint_digest=digests,
    identity=identities,
    lease=st.none() | leases,
    detach_grace_ms=u32,
    forward_headers=facts,
    work=st.sampled_from(engine.WorkClass),
    cache_scope=words,
    prompt_hint=st.binary(max_size=64),
    quiet=st.booleans(),
    reserve_tokens=u32,
)
attach_orders = build(
    engine.AttachOrder,
    generation_id=ids,
    from_item=u64,
    wait_ms=st.integers(0, 50),
    adopts=st.booleans(),
    quiet=st.booleans(),
)
abort_orders = build(engine.AbortOrder, generation_id=ids, reason=words, only_speculative=st.booleans())
abort_results = build(engine.AbortResult, aborted=st.booleans(), confirmed_ms=st.none() | numbers)
ends = (
    build(engine.Completed, commit=words, execution_ms=numbers)
    | build(
        engine.Failed,
        http_status=u32,
        body=st.binary(),
        may_retry=st.booleans(),
        content_type=words,
        execution_ms=numbers,
        retry_after=words,
    )
    | build(engine.Aborted, reason=words, execution_ms=numbers)
)
generation_events = build(
    engine.GenerationEvents,
    from_item=u64,
    items=several(st.binary()),
    end=st.none() | ends,
    traceparent=words,
)
occupancies = build(
    engine.Occupancy,
    revision=u64,
    ready=st.booleans(),
    slots=u32,
    running=u32,
    waiting=u32,
    engine_running=st.none() | u32,
    engine_waiting=st.none() | u32,
    kv_used_share=st.none() | numbers,
    fills=u32,
    prompt_hints=several(st.binary()),
    drafts=u32,
    speculative_tokens=u64,
    fill_slots=u32,
    fill_kv_tokens=st.none() | u64,
)

pairs = st.dictionaries(words, words, max_size=3).map(lambda known: tuple(sorted(known.items())))
selections = build(events.Selection, decision_point=words, chosen=several(words), ambiguous=st.booleans())
stages_told = build(
    events.StageTold,
    stage=words.filter(bool),
    index=u32,
    values=pairs,
    selections=several(selections),
    sharing_group=words,
    cache_scope=words,
    forward_headers=pairs,
)
outputs_told = build(
    events.OutputTold,
    stage=words.filter(bool),
    index=u32,
    selections=several(selections),
    output_json=st.binary(),
    execution_ms=numbers,
)
arrivals = build(
    events.ArrivalSeen,
    at=u64,
    demand_id=ids,
    identity=identities,
    target=words,
    name=st.none() | digests,
    streaming=st.booleans(),
    told=st.none() | stages_told,
    traceparent=words,
    turn=u32,
)
choices = build(
    events.ChoiceSeen,
    at=u64,
    demand_id=ids,
    identity=identities,
    stage=words,
    index=u32,
    selection=selections,
    closed=st.booleans(),
    items=u32,
    spoken=st.booleans(),
)
outcomes = build(
    events.OutcomeSeen,
    at=u64,
    demand_id=ids,
    outcome=words,
    latency_ms=numbers,
    saved_ms=numbers,
    failed=st.booleans(),
    input_tokens=u32,
    output_tokens=u32,
    told=st.none() | outputs_told,
)
batches = build(
    events.EventBatch,
    reporter=words.filter(bool),
    first_number=u64,
    events=several(arrivals | outcomes | choices),
)
summaries = build(
    events.ControllerSummary,
    arrivals=u64,
    outcomes=st.dictionaries(words, u64, max_size=3).map(lambda pairs: tuple(sorted(pairs.items()))),
    saved_ms=numbers,
    workflows=u64,
    duplicates=u64,
    lost=u64,
    branches=u64,
    open_branches=u64,
    fills=u64,
    promoted=u64,
    adopted=u64,
    discarded=u64,
)
template_sets = build(
    branches.TemplateSet,
    revision=u64,
    templates=several(build(branches.TemplateSource, workflow_type_id=words, text=words)),
)
branch_summaries = build(
    branches.BranchSummary,
    branch_id=ids,
    workflow_type_id=words,
    workflow_id=words,
    decision_point=words,
    state=words,
    opened=u64,
    candidates=u32,
    fills=u32,
    consumed=u32,
)
