"""One request while it runs: from the model's tokens to the bytes of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from dynbranch.stub_engine import answer as answers
from dynbranch.stub_engine.answer import Answer
from dynbranch.stub_engine.asking import Asked
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.script import Reply
from dynbranch.stub_engine.wire import Call

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_DONE = b"data: [DONE]\n\n"
_MALFORMED = b'data: {"id":"broken","choices":[{"index":0,"delta":{"content":"\n\n'


class Ending(Enum):
    """How a generation ended, as ``/stub/requests`` tells it."""

    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAULT = "fault"
    REFUSED = "refused"


class Host(Protocol):
    """What a generation asks of its engine."""

    def later(self, delay_s: float, then: Callable[[], None]) -> None: ...

    def exit(self) -> None: ...

    def left(self, generation: Generation) -> None:
        """It needs its slot no more."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How an engine frames an answer."""

    id: str
    created: int
    model: str
    chat: bool
    head_at_once: bool


class Generation:
    """Follows the pacer, writes to the call, and does what its fault says."""

    __slots__ = (
        "_asked", "_breaks_at", "_call", "_count", "_deltas", "_fault", "_head", "_host", "_reply", "_sent",
        "_streams", "_stuck", "_tail", "answer", "ending", "hit_tokens", "key", "prompt_tokens", "shape",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        call: Call,
        asked: Asked,
        answer: Answer,
        shape: Shape,
        host: Host,
        *,
        prompt_tokens: int,
        fault: Fault | None,
        reply: Reply,
    ) -> None:
        self.key = key
        self.answer = answer
        self.shape = shape
        self.prompt_tokens = prompt_tokens
        self.hit_tokens = 0
        self.ending = Ending.RUNNING
        self._call = call
        self._asked = asked
        self._host = host
        self._fault = fault
        self._breaks_at = _break_of(fault, answer)
        self._reply = reply
        self._streams = asked.streaming or self._is_given
        self._sent = 0
        self._count = 0
        self._stuck = False
        self._deltas: list[str] = []
        self._head = self._tail = ""

    @property
    def hears_every_token(self) -> bool:
        return self._streams or self._breaks_at is not None

    @property
    def _is_given(self) -> bool:
        """The bytes of the stream are the script's own."""
        return self._reply.events is not None or self._reply.parts is not None

    @property
    def sent_tokens(self) -> int:
        return self._count

    def begin(self) -> bool:
        """It is about to be submitted; False: it is not, since it has ended."""
        if self._streams:
            self._prepare()
        if self._breaks_at == 0:
            self._break()
        elif self._streams and self.shape.head_at_once:
            self._open()
        return self.ending is Ending.RUNNING

    def _prepare(self) -> None:
        shape = self.shape
        kind = "chat.completion.chunk" if shape.chat else "text_completion"
        self._head = (
            f'data: {{"id":{_compact(shape.id)},"object":"{kind}","created":{shape.created},'
            f'"model":{_compact(shape.model)},"choices":[{{"index":0,'
        )
        self._tail = ',"logprobs":null,"finish_reason":null}]}\n\n'
        if self._is_given:
            return
        if shape.chat:
            self._deltas = answers.deltas(self.answer)
            self._head += '"delta":'
        else:
            self._deltas = [_compact(piece) if piece else "" for piece in answers.text_pieces(self.answer)]
            self._head += '"text":'

    # -- what the pacer tells ------------------------------------------------------------------------------

    def admitted(self, hit_tokens: int) -> None:
        self.hit_tokens = hit_tokens

    def has_tokens(self, count: int) -> None:
        assert count >= self._count, "what was sent is not sent again"
        breaks_at = self._breaks_at
        self._count = count if breaks_at is None or self._stuck else min(count, breaks_at)
        if self._stuck:
            return
        if self._streams:
            self._send(self._rendered())
        if breaks_at is not None and count >= breaks_at:
            self._break()

    def finished(self) -> None:
        if self._breaks_at is not None and not self._stuck:
            self.has_tokens(self.answer.tokens)
        if self.ending is Ending.RUNNING:
            self._count = self.answer.tokens
            if not self._stuck:
                self._end(Ending.FINISHED, self.answer.finish_reason)

    def refused(self) -> None:
        self.ending = Ending.REFUSED
        if not self._call.started:
            self._call.respond(400, error_body("The request is larger than the KV cache.", 400))
        else:
            self._call.cut()
        self._host.left(self)

    # -- other ends ----------------------------------------------------------------------------------------

    def abort(self, produced: int) -> None:
        """The engine was told to, when it had so many tokens."""
        if not self._streams:
            self._count = produced
            self.answer = answers.cut(self.answer, produced)
        elif not self._head:
            self._prepare()
        self._end(Ending.ABORTED, "abort")

    def client_gone(self) -> None:
        self.ending = Ending.ABORTED
        self._host.left(self)

    # -- the stream ----------------------------------------------------------------------------------------

    def _rendered(self) -> bytes:
        """What has become visible since the last time."""
        first, self._sent = self._sent, self._count
        if self._is_given:
            reply = self._reply
            if reply.parts is not None:
                return b"".join(reply.parts[first : self._sent])
            return b"".join([b"data: %b\n\n" % event for event in (reply.events or ())[first : self._sent]])
        head, tail = self._head, self._tail
        if first and first + 1 == self._sent:
            delta = self._deltas[first]
            return (head + delta + tail).encode("utf-8", "surrogatepass") if delta else b""
        text = "".join([head + delta + tail for delta in self._deltas[first : self._sent] if delta])
        if first == 0 and self.shape.chat and self._sent:
            opening = head + '{"role":"assistant","content":""}' + tail
            twice = self._fault is not None and self._fault.kind is FaultKind.DUPLICATE
            text = opening * (2 if twice else 1) + text
        return text.encode("utf-8", "surrogatepass")

    def _send(self, part: bytes) -> None:
        if not part:
            return
        if self._call.started:
            self._call.write(part)
        else:
            self._open(part)

    def _open(self, part: bytes = b"") -> None:
        kind = self._reply.content_type
        self._call.stream(part, *((kind.encode(),) if kind else ()))

    def _end(self, ending: Ending, reason: str) -> None:
        self.ending = ending
        if not self._streams:
            self._call.respond(200, self._whole(reason))
        elif self._is_given:
            self._close_stream(self._rendered() + (_DONE if self._reply.parts is None else b""))
        else:
            self._close_stream(self._rendered() + self._closing(reason))
        self._host.left(self)

    def _close_stream(self, part: bytes) -> None:
        if not self._call.started:
            self._open()
        self._call.finish(part)

    def _closing(self, reason: str) -> bytes:
        nothing = "{}" if self.shape.chat else '""'
        text = f'{self._head}{nothing},"logprobs":null,"finish_reason":{_compact(reason)}}}]}}\n\n'
        if self._asked.include_usage:
            start = self._head[: self._head.index('"choices"')]
            text += f'{start}"choices":[],"usage":{self._usage()}}}\n\n'
        return text.encode() + _DONE

    def _whole(self, reason: str) -> bytes:
        shape, answer = self.shape, self.answer
        if not shape.chat:
            said = f'"text":{_compact(answer.text)}'
        elif answer.calls or answer.reasoning:
            said = f'"message":{_compact(answers.message(answer))}'
        else:
            said = f'"message":{{"role":"assistant","content":{_compact(answer.text)}}}'
        kind = "chat.completion" if shape.chat else "text_completion"
        return (
            f'{{"id":{_compact(shape.id)},"object":"{kind}","created":{shape.created},'
            f'"model":{_compact(shape.model)},'
            f'"choices":[{{"index":0,{said},"logprobs":null,"finish_reason":{_compact(reason)}}}],'
            f'"usage":{self._usage()}}}'
        ).encode("utf-8", "surrogatepass")

    def _usage(self) -> str:
        if self.answer.usage is not None:
            return _compact(self.answer.usage)
        prompt, output = self.prompt_tokens, self._count
        return (
            f'{{"prompt_tokens":{prompt},"completion_tokens":{output},"total_tokens":{prompt + output},'
            f'"prompt_tokens_details":{{"cached_tokens":{self.hit_tokens}}}}}'
        )

    # -- faults --------------------------------------------------------------------------------------------

    def _break(self) -> None:
        fault = self._fault
        assert fault is not None
        self._stuck = True
        match fault.kind:
            case FaultKind.STALL:
                if fault.for_s is not None:
                    self._host.later(fault.for_s, self._go_on)
                return
            case FaultKind.STATUS:
                self._refuse(fault)
            case FaultKind.MALFORMED:
                self._close_stream(_MALFORMED)
            case FaultKind.EXIT:
                self._host.exit()
            case _:
                self._call.cut()
        self.ending = Ending.FAULT
        self._host.left(self)

    def _refuse(self, fault: Fault) -> None:
        advice = fault.retry_after_s
        text = advice if isinstance(advice, str) else f"{advice:g}" if advice is not None else ""
        self._call.respond(
            fault.status,
            fault.body.encode() or error_body(f"A fault on command: {fault.status}.", fault.status),
            fault.content_type.encode(),
            ((b"retry-after", text.encode()),) if text else (),
        )

    def _go_on(self) -> None:
        """After a stall; what the model gave meanwhile comes at once."""
        if self._call.gone:
            return
        self._stuck = False
        self._breaks_at = None
        if self._count >= self.answer.tokens:
            self._end(Ending.FINISHED, self.answer.finish_reason)
        elif self._streams:
            self._send(self._rendered())


def _break_of(fault: Fault | None, answer: Answer) -> int | None:
    """After how many tokens it breaks; None: it does not."""
    match fault.kind if fault else None:
        case FaultKind.STATUS:
            return 0
        case FaultKind.STALL | FaultKind.CUT | FaultKind.MALFORMED | FaultKind.EXIT if fault:
            return min(fault.after_tokens, answer.tokens)
        case _:
            return None


def error_body(message: str, status: int, kind: str = "", param: str | None = None) -> bytes:
    """An error as OpenAI-compatible engines tell it."""
    kind = kind or ("BadRequestError" if status < 500 else "InternalServerError")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}}).encode()
