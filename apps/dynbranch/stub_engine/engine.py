"""The stub engine: an OpenAI-compatible server over the engine model, in this process.

``async with StubEngine(settings) as stub`` serves at ``stub.url``. Nothing here costs a task for a request:
calls are answered by plain functions, and the pacer's one timer moves every generation.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from dynbranch.enginemodel.messages import Submit
from dynbranch.enginemodel.model import EngineModel, engine_model
from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.runtime.tasks import Tasks
from dynbranch.stub_engine import asking, toy_tokens
from dynbranch.stub_engine.answer import answer_to
from dynbranch.stub_engine.asking import Asked, BadRequest
from dynbranch.stub_engine.faults import Fault, FaultKind, Faults
from dynbranch.stub_engine.generation import Generation, Shape, error_body
from dynbranch.stub_engine.matching import RequestView
from dynbranch.stub_engine.native import Native, SpelledGeneration, Spoken
from dynbranch.stub_engine.pacer import Pacer
from dynbranch.stub_engine.pages import Readings
from dynbranch.stub_engine.received import Received
from dynbranch.stub_engine.script import Reply, Script
from dynbranch.stub_engine.settings import Flavour, StubSettings
from dynbranch.stub_engine.wire import Call, Listener

EXIT_BY_FAULT = 70


class StubEngine:
    """``script``, ``faults`` and ``writer`` may change while it runs. ``writer``, where one is set, is asked
    before the script; it sees the body and may return None."""

    def __init__(self, settings: StubSettings | None = None, *, ends_process: bool = False) -> None:
        from dynbranch.stub_engine.routes import Router

        self.settings = settings = settings or StubSettings()
        self.script = Script(settings.rules)
        self.faults = Faults(settings.faults)
        self.writer: Callable[[RequestView], Reply | None] | None = None
        self.template = toy_tokens.TEMPLATE
        self.requests: deque[Received] = deque(maxlen=settings.kept_requests)
        self.starts = 0
        self.started_unix_s = 0.0
        self._ends_process = ends_process
        self._router = Router(self)
        self._listener = Listener(self._serve, settings.host, settings.port)
        self._generations: dict[int, tuple[Generation, Pacer]] = {}
        self._number = 0
        self._ready_at = 0.0
        self._tasks: Tasks | None = None
        self._model: EngineModel
        self._pacer: Pacer
        self._own_pace: Pacer

    # -- its life ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """A new engine at the same port as before. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        await self._tasks.__aenter__()
        self._loop = loop
        self._model = engine_model(self.settings.latency)
        self._pacer = Pacer(self._model, loop)
        # Requests whose script has a speed of its own stand beside the batch.
        self._own_pace = Pacer(engine_model(FixedParameters(block_tokens=0)), loop)
        self.starts += 1
        self.started_unix_s = time.time()
        self._ready_at = loop.time() + self.settings.slow_start_s
        await self._listener.open()
        for fault in self.faults.active:
            self.enforce(fault)

    async def stop(self) -> None:
        """As a crash: every connection is cut, and what ran is gone."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            self._halt()
            await tasks.__aexit__(None, None, None)

    def _halt(self) -> None:
        self._listener.close()
        self._pacer.close()
        self._own_pace.close()
        self._generations.clear()

    @property
    def url(self) -> str:
        return f"http://{self.settings.host}:{self._listener.port}"

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def is_loading(self) -> bool:
        return self._loop.time() < self._ready_at

    @property
    def readings(self) -> Readings:
        gauges = self._model.gauges
        running = len(self._generations) - gauges.waiting
        return Readings(gauges, running, gauges.waiting, self.started_unix_s, self.settings.model)

    @property
    def running(self) -> int:
        return self.readings.running

    @property
    def waiting(self) -> int:
        return self.readings.waiting

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the generations that were asked for, oldest first."""
        return [request.body for request in self.requests]

    def reset(self) -> None:
        """Forgets requests, faults, what of the script is used up, and the prefix cache."""
        self.requests.clear()
        self.faults.clear()
        self.script.reset()
        self._model.flush_cache()

    def flush_cache(self) -> bool:
        """False when something runs."""
        if self._generations:
            return False
        self._model.flush_cache()
        return True

    def abort(self, wanted: Callable[[str], bool]) -> int:
        """Ends the generations whose id is wanted; returns how many."""
        found = [(one, pacer) for one, pacer in self._generations.values() if wanted(one.shape.id)]
        for generation, pacer in found:
            produced = pacer.model.produced(generation.key)
            pacer.abort(generation.key)
            generation.abort(produced)
        return len(found)

    def enforce(self, fault: Fault) -> None:
        """A fault of the server takes effect."""
        if fault.kind is FaultKind.REFUSE:
            # The answer to whoever asked for it still leaves.
            self.later(0.02, self._listener.close)
            if fault.for_s is not None:
                self.later(fault.for_s + 0.02, self.accept_again)

    def accept_again(self) -> None:
        """Ends a refusal of connections."""
        self.faults.active[:] = [one for one in self.faults.active if one.kind is not FaultKind.REFUSE]
        self._spawn(self._listener.open)

    # -- requests ------------------------------------------------------------------------------------------

    def _serve(self, call: Call) -> None:
        self._router.serve(call)

    def generate(self, call: Call, *, chat: bool, native: Native | None = None) -> None:
        """Answers a generation request, now or later. ``native``: the protocol that it is in, where that is
        none of OpenAI's older ones."""
        self._number += 1
        received = Received.of(self._number, self._loop.time(), call.path, call.headers, call.body)
        self.requests.append(received)
        try:
            self._check_ready()
            spoken = Spoken.of(native, call.body) if native is not None else None
            asked = asking.read(spoken.chat if spoken is not None else call.body, chat=chat)
            self._check(asked)
        except BadRequest as error:
            received.error = str(error)
            kind = "NotFoundError" if error.status == 404 else ""
            call.respond(error.status, error_body(str(error), error.status, kind, error.param))
            return
        view = RequestView(call.path, asked.body)
        reply = self._reply(view)
        fault = self.faults.strike(view) or reply.fault
        if fault is not None and fault.kind is FaultKind.WHOLE_CALL:
            reply = replace(reply, whole_arguments=True)
        generation = self._generation(call, asked, reply, fault, spoken)
        received.generation = generation
        self._begin(generation, call, asked, reply, fault)

    def _check_ready(self) -> None:
        if self.is_loading:
            raise BadRequest("Loading model", 503)

    def _check(self, asked: Asked) -> None:
        settings = self.settings
        # The others run what they have, whatever it is called.
        looks = settings.flavour in (Flavour.VLLM, Flavour.OPENAI) and asked.model
        if looks and asked.model != settings.model and asked.model not in settings.aliases:
            raise BadRequest(f"The model `{asked.model}` does not exist.", 404, "model")
        tokens = toy_tokens.count_tokens(len(asked.prompt)) + asked.max_tokens
        if tokens > settings.max_model_len:
            limit = settings.max_model_len
            raise BadRequest(f"This model's maximum context length is {limit} tokens.", 400, "max_tokens")

    def _reply(self, view: RequestView) -> Reply:
        if self.writer is not None and (written := self.writer(view)) is not None:
            return written
        return self.script.reply(view)

    def _generation(
        self, call: Call, asked: Asked, reply: Reply, fault: Fault | None, spoken: Spoken | None
    ) -> Generation:
        settings = self.settings
        answer = answer_to(
            asked,
            reply,
            output_tokens=settings.output_tokens,
            default_output_tokens=settings.default_output_tokens,
        )
        prefix = "chatcmpl-" if asked.chat else "cmpl-"
        request_id = asked.request_id or call.header(b"x-request-id").decode("latin-1")
        if settings.flavour is Flavour.SGLANG:
            prefix = "" if asked.request_id else prefix
        shape = Shape(
            id=prefix + (request_id or f"{self.starts:04x}{self._number:012x}"),
            created=int(time.time()),
            model=asked.model or settings.model,
            chat=asked.chat,
            head_at_once=settings.flavour in (Flavour.VLLM, Flavour.SGLANG),
        )
        size_bytes = len(asked.prompt.encode("utf-8", "surrogatepass"))
        kind = Generation if spoken is None else partial(SpelledGeneration, spoken.spelling(answer, shape))
        return kind(
            self._number,
            call,
            asked,
            answer,
            shape,
            self,
            prompt_tokens=max(1, toy_tokens.count_tokens(size_bytes)),
            fault=fault,
            reply=reply,
        )

    def _begin(
        self, generation: Generation, call: Call, asked: Asked, reply: Reply, fault: Fault | None
    ) -> None:
        pacer = self._own_pace if generation.answer.pace else self._pacer
        self._generations[generation.key] = (generation, pacer)
        call.when_gone = generation.client_gone

        def submit() -> None:
            if generation.key in self._generations and generation.begin():
                pacer.submit(self._order(generation, asked, pacer), generation)

        if fault is not None and fault.kind is FaultKind.HANG:
            if fault.for_s is not None:
                self.later(fault.for_s, submit)
        elif reply.gate is not None and not reply.gate.is_set():
            self._when_open(reply.gate, submit)
        else:
            submit()

    def _order(self, generation: Generation, asked: Asked, pacer: Pacer) -> Submit:
        answer = generation.answer
        block_tokens = self.settings.latency.block_tokens if pacer is self._pacer else 0
        text = (asked.prompt + answer.text).encode("utf-8", "surrogatepass") if block_tokens else b""
        ignores = self.settings.flavour in (Flavour.OPENAI, Flavour.LLAMA_SERVER)
        sense = -1 if self.settings.flavour is Flavour.SGLANG else 1
        return Submit(
            generation.key,
            generation.prompt_tokens,
            answer.tokens,
            toy_tokens.prefix_blocks(text, block_tokens, asked.salt),
            0 if ignores else sense * asked.priority,
            every_token=generation.hears_every_token,
            pace=answer.pace,
        )

    def _when_open(self, gate: asyncio.Event, then: Callable[[], None]) -> None:
        async def wait() -> None:
            await gate.wait()
            then()

        self._spawn(wait)

    # -- what generations ask for --------------------------------------------------------------------------

    def later(self, delay_s: float, then: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(delay_s)
            then()

        self._spawn(wait)

    def _spawn(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is not None:
            self._tasks.spawn(job(), name="stub-engine")

    def left(self, generation: Generation) -> None:
        """It needs its slot no more."""
        found = self._generations.pop(generation.key, None)
        if found is not None:
            found[1].abort(generation.key)

    def exit(self) -> None:
        """The fault that ends the process; in a test's process, only the engine."""
        if self._ends_process:
            os._exit(EXIT_BY_FAULT)
        self._halt()
