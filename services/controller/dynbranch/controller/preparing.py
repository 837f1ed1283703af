"""A stage of a fill, written and named exactly as the gateway will write and name the harness's request."""

from __future__ import annotations

import asyncio

from dynbranch.controller.agents import Agents
from dynbranch.controller.core.branches.messages import Prepared, PrepareStage
from dynbranch.domain.engine import Freshness, ModelDescription, ToolDescription, WireProtocol
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import InvalidId, parse_record
from dynbranch.domain.reuse import PURE, DeclaredRead, Level, ReadScope
from dynbranch.domain.template import ReadsKind, Renderer, RenderFailed, Speculable, Stage, StageKind
from dynbranch.naming.document import Document, Number, parse_body
from dynbranch.naming.name import reuse_name
from dynbranch.naming.normalise import model_of, normalise_chat, normalise_tool
from dynbranch.naming.pool import Pool

RENDER_TIMEOUT_S = 2.0
"""A request takes a millisecond; a template that loops is the operator's own fault, and holds up nobody."""

BYTES_PER_TOKEN = 4
DEFAULT_OUTPUT_TOKENS = 512
"""What a request without a limit is taken to write, for the reservation only."""


class CanNotPrepare(Exception):
    """This stage can not run ahead. The message says why, for people."""


class Preparer:
    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def prepare(self, ask: PrepareStage, renderer: Renderer) -> Prepared:
        """Raises CanNotPrepare."""
        try:
            stage = ask.template.stage(ask.stage)
            async with asyncio.timeout(RENDER_TIMEOUT_S):
                body, records = await asyncio.to_thread(_written, renderer, stage, ask)
            document = parse_body(body)
            if stage.kind is StageKind.TOOL:
                return self._tool(ask, stage, document)
            return self._chat(ask, stage, document, records)
        except TimeoutError:
            raise CanNotPrepare(f"its request was not written within {RENDER_TIMEOUT_S} s") from None
        except (RenderFailed, InvalidRequest) as problem:
            raise CanNotPrepare(problem.message) from None
        except (KeyError, InvalidId) as problem:
            raise CanNotPrepare(str(problem)) from None

    def _chat(
        self, ask: PrepareStage, stage: Stage, document: Document, records: tuple[str, ...]
    ) -> Prepared:
        wanted = model_of(document)
        pool = self._agents.pool_of_model(wanted)
        if pool is None:
            raise CanNotPrepare(f"no agent serves the model {wanted[:80]!r}")
        model = pool.executor
        assert isinstance(model, ModelDescription)
        request = normalise_chat(
            document, model.equivalences, served_model=model.id, fingerprint=model.fingerprint
        )
        once = stage.speculable is Speculable.ONCE and request.reuse.reason == "sampled"
        if not once and not request.reuse.reusable:
            raise CanNotPrepare(request.reuse.explanation)
        if model.not_reusable_reason or model.fingerprint.level is Level.SAMPLED:
            raise CanNotPrepare(model.not_reusable_reason or "the engine does not repeat itself")
        scope = PURE
        if stage.reads.kind is ReadsKind.DECLARED:
            ids = sorted({parse_record(record) for record in records})
            scope = ReadScope(declared=tuple(DeclaredRead(record) for record in ids))
        return Prepared(
            name=reuse_name(ask.passport.sharing_group, pool.fingerprint, request.canonical),
            protocol=WireProtocol.CHAT_COMPLETIONS,
            target=model.id,
            body=request.engine_body,
            fingerprint=pool.fingerprint,
            members=_members(pool),
            tokens=len(document.source) // BYTES_PER_TOKEN + _output_tokens(document),
            scope=scope,
            input_digests=request.input_digests,
            once=once,
        )

    def _tool(self, ask: PrepareStage, stage: Stage, document: Document) -> Prepared:
        pool = self._agents.pool_of_tool(stage.target)
        if pool is None:
            raise CanNotPrepare(f"no agent offers the tool {stage.target[:80]!r}")
        tool = pool.executor
        assert isinstance(tool, ToolDescription)
        immutable = tool.freshness is Freshness.IMMUTABLE
        if not immutable and (tool.freshness is Freshness.NONE or not tool.source):
            raise CanNotPrepare("the tool names no source")
        request = normalise_tool(tool.name, document)
        return Prepared(
            name=reuse_name(ask.passport.sharing_group, pool.fingerprint, request.canonical),
            protocol=WireProtocol.TOOL,
            target=tool.name,
            body=request.engine_body,
            fingerprint=pool.fingerprint,
            members=_members(pool),
            tokens=0,
            scope=PURE if immutable else ReadScope(sources=(tool.source,)),
            input_digests=request.input_digests,
        )


def _written(renderer: Renderer, stage: Stage, ask: PrepareStage) -> tuple[bytes, tuple[str, ...]]:
    body = renderer.render(stage.name, ask.context, ask.selection)
    declared = stage.reads.kind is ReadsKind.DECLARED
    return body, renderer.reads(stage.name, ask.context, ask.selection) if declared else ()


def _members(pool: Pool) -> tuple[str, ...]:
    return tuple(member.address for member in pool.members)


def _output_tokens(document: Document) -> int:
    body = document.value
    if not isinstance(body, dict):
        return DEFAULT_OUTPUT_TOKENS
    limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
    told = [_at_most(one.text, 2**20) for one in limits if isinstance(one, Number) and one.text.isdigit()]
    return min(told, default=DEFAULT_OUTPUT_TOKENS)


def _at_most(digits: str, bound: int) -> int:
    """Numbers of thousands of digits can not be read as such."""
    return bound if len(digits) > len(str(bound)) else min(int(digits), bound)
