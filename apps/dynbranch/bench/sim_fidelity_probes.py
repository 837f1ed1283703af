"""How fast this machine's embedded engines are, asked again and again beside what is measured, and the engine
model's parameters that say so.

Machines that others share change their speed twofold within seconds. So every block of probes begins and ends
with the same one, the *reference*; all other times count relative to it, and medians of blocks make the
parameters. What a workflow really took is compared at the speed that the references around it tell.

Two engines of one thread each are modelled as one: where they share cores and memory, a sequence on the other
engine slows a decode as one on the same engine does, and a prefill and a decode take turns.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from dynbranch.bench.result import BenchFailed
from dynbranch.calibration.engines import HttpEngine
from dynbranch.calibration.probing import ProbeFailed, Ran
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.runtime.tasks import Tasks

SHORT_WORDS: Final = 24
LONG_WORDS: Final = 200
FEW_TOKENS: Final = 8
MANY_TOKENS: Final = 32
FILL_TOKENS: Final = 400
_SETTLE_S: Final = 0.15
_LONGEST_S: Final = 90.0
_WORDS: Final = (
    "act air arm art ask bag bed bird boat book cake card city coat corn cup desk door dust east egg farm "
    "fire fish flag gate gold hand hill home ice iron jar king lake lamp leaf line map milk moon nail name "
    "nest oak page park path pen rain ring road rock roof rope salt sand seed ship snow song star tea tide "
    "tree wall west wind wood yard year"
)
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "maxLength": 32},
        "handler": {"type": "string", "enum": ["gate_keeper", "lamp_lighter", "boat_builder"]},
        "more": {"type": "boolean"},
    },
    "required": ["reason", "handler", "more"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One probe. ``beside``: so many decodes on this engine and on the other one."""

    name: str
    words: int = SHORT_WORDS
    tokens: int = MANY_TOKENS
    here: int = 0
    there: int = 0
    schema: bool = False


REFERENCE: Final = Shape("reference")
SHORT: Final = Shape("short", tokens=FEW_TOKENS)
LONG: Final = Shape("long prompt", words=LONG_WORDS, tokens=FEW_TOKENS)
DEEP: Final = Shape("long prompt and answer", words=LONG_WORDS)
FORMED: Final = Shape("answer in a form", tokens=96, schema=True)
BESIDE: Final = Shape("beside one", there=1)
CROWDED: Final = Shape("beside two", here=1, there=1)
EVERY: Final = (SHORT, LONG, DEEP, FORMED, BESIDE, CROWDED)
SHORTER: Final = (SHORT, LONG, FORMED, BESIDE)
"""Of every other block: those that matter most and take least."""


@dataclass(frozen=True, slots=True)
class Block:
    """``reference_ms``: the mean of the two around it. ``ratios``: times over it; ``sizes``: tokens of the
    prompt and the answer."""

    reference_ms: float
    ratios: Mapping[str, float]
    sizes: Mapping[str, tuple[int, int]]


class Prober:
    """``engines``: the one that is asked, and the other one."""

    def __init__(self, engines: Sequence[HttpEngine], chance: Random) -> None:
        self._here, self._there = engines
        self._chance = chance

    async def reference_ms(self) -> float:
        return (await self._run(REFERENCE)).ms

    async def block(self, shapes: Sequence[Shape] = EVERY) -> Block:
        """Raises BenchFailed."""
        first = await self._run(REFERENCE)
        ran: dict[str, Ran] = {}
        for shape in self._chance.sample(shapes, len(shapes)):
            ran[shape.name] = await self._run(shape)
        last = await self._run(REFERENCE)
        reference_ms = (first.ms + last.ms) / 2
        ratios = {name: one.ms / reference_ms for name, one in ran.items()}
        sizes = {name: (one.prompt_tokens, one.tokens) for name, one in ran.items()}
        sizes[REFERENCE.name] = (first.prompt_tokens, first.tokens)
        return Block(reference_ms, ratios, sizes)

    async def _run(self, shape: Shape) -> Ran:
        engine = self._here
        if shape.schema:
            form = {"name": "route", "schema": SCHEMA, "strict": True}
            fields = {"response_format": {"type": "json_schema", "json_schema": form}, "ignore_eos": False}
            engine = replace(engine, fields=fields)
        fills = [self._here] * shape.here + [self._there] * shape.there
        try:
            async with asyncio.timeout(_LONGEST_S), self._busy(fills):
                ran = await engine.run(self._prompt(shape.words), shape.tokens, _nothing)
        except (ProbeFailed, TimeoutError) as failure:
            raise BenchFailed(f"a probe failed: {failure or 'it takes too long'}") from failure
        if fills:
            await asyncio.sleep(_SETTLE_S)
        return ran

    @asynccontextmanager
    async def _busy(self, engines: Sequence[HttpEngine]) -> AsyncIterator[None]:
        """Each decodes until the end of the block."""
        async with Tasks() as tasks:
            for number, engine in enumerate(engines):
                begun = asyncio.Event()
                tasks.spawn(self._fill(engine, begun), name=f"probe fill {number}")
                await begun.wait()
            yield

    async def _fill(self, engine: HttpEngine, begun: asyncio.Event) -> None:
        while True:
            await engine.run(self._prompt(SHORT_WORDS), FILL_TOKENS, begun.set)

    def _prompt(self, words: int) -> str:
        return " ".join(self._chance.choices(_WORDS.split(), k=words))


@dataclass(frozen=True, slots=True)
class Fitted:
    """``parameters`` at the speed at which a reference takes ``reference_ms``. ``overhead_s``: what a request
    takes beside its tokens. ``form_tokens``: a token of an answer in a form takes as long as so many."""

    parameters: BatchParameters
    reference_ms: float
    overhead_s: float
    form_tokens: float
    raw: Mapping[str, Any] = field(default_factory=dict)

    def at(self, reference_ms: float) -> BatchParameters:
        """The same machine at another speed."""
        slower = reference_ms / self.reference_ms
        one = self.parameters
        return replace(
            one,
            decode_step_ms=one.decode_step_ms * slower,
            batched_extra_ms=one.batched_extra_ms * slower,
            sequence_ms=one.sequence_ms * slower,
            kilotoken_ms=one.kilotoken_ms * slower,
            prefill_tokens_per_s=one.prefill_tokens_per_s / slower,
        )


def fitted(blocks: Sequence[Block]) -> Fitted:
    """Raises BenchFailed where the times make no sense, as on a machine that does something else."""
    reference_ms = statistics.median(block.reference_ms for block in blocks)
    ms = {shape.name: reference_ms * _middle(blocks, shape) for shape in EVERY}
    ms[REFERENCE.name] = reference_ms
    sizes = {name: _sizes(blocks, name) for name in ms}
    (few_prompt, few), (_, many) = sizes[SHORT.name], sizes[REFERENCE.name]
    long_prompt, _ = sizes[LONG.name]
    step_ms = (reference_ms - ms[SHORT.name]) / (many - few)
    deep_step_ms = (ms[DEEP.name] - ms[LONG.name]) / (sizes[DEEP.name][1] - sizes[LONG.name][1])
    # A cache that holds little is read so fast that noise may say that more of it is read faster.
    kilotoken_ms = max(0.0, 1000 * (deep_step_ms - step_ms) / (long_prompt - few_prompt))
    grown_ms = (few - 1) * kilotoken_ms * (long_prompt - few_prompt) / 1000
    prefill_ms = (ms[LONG.name] - ms[SHORT.name] - grown_ms) / (long_prompt - few_prompt)
    if min(step_ms, prefill_ms) <= 0:
        raise BenchFailed("the probes make no sense: the machine is too busy with something else")
    context = (few_prompt + (few + many) / 2) / 1000
    alone_ms = max(0.0, step_ms - kilotoken_ms * context)
    overhead_ms = max(0.0, ms[SHORT.name] - prefill_ms * few_prompt - (few - 1) * step_ms)
    rest_ms = overhead_ms + prefill_ms * few_prompt
    beside_ms, crowded_ms = ((ms[one.name] - rest_ms) / (many - 1) for one in (BESIDE, CROWDED))
    # A step of one, two and three sequences; the model knows no step that grows faster than it began.
    second_ms = max(0.0, beside_ms - step_ms - kilotoken_ms * context)
    third_ms = max(0.0, crowded_ms - beside_ms - kilotoken_ms * context)
    sequence_ms = min(third_ms, (second_ms + third_ms) / 2)
    formed_prompt, formed = sizes[FORMED.name]
    form_ms = (ms[FORMED.name] - overhead_ms - prefill_ms * formed_prompt) / max(1, formed - 1)
    per_s = 1000 / prefill_ms
    parameters = BatchParameters(
        decode_step_ms=max(0.001, alone_ms - sequence_ms),
        batched_extra_ms=max(0.0, second_ms - sequence_ms),
        sequence_ms=sequence_ms,
        kilotoken_ms=kilotoken_ms,
        prefill_tokens_per_s=per_s,
        kv_pool_tokens=16_384,
        # A prefill and a decode have the machine in turns.
        prefill_chunk_tokens=max(1, round(per_s * step_ms / 1000)),
        slots=4,
        block_tokens=0,
    )
    raw = {"ms": ms, "sizes": sizes, "step_ms": step_ms, "beside_ms": beside_ms, "crowded_ms": crowded_ms}
    return Fitted(parameters, reference_ms, overhead_ms / 1000, max(0.1, form_ms / step_ms), raw)


def _middle(blocks: Sequence[Block], shape: Shape) -> float:
    found = [block.ratios[shape.name] for block in blocks if shape.name in block.ratios]
    if not found:
        raise BenchFailed(f"nothing was probed {shape.name}")
    return statistics.median(found)


def _sizes(blocks: Sequence[Block], name: str) -> tuple[float, float]:
    found = [block.sizes[name] for block in blocks if name in block.sizes]
    return statistics.median(a for a, _ in found), statistics.median(b for _, b in found)


def raw_of(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    return [{"reference_ms": one.reference_ms, "ratios": dict(one.ratios)} for one in blocks]


def _nothing() -> None:
    """Of a probe nobody waits for the beginning."""
