"""Which page answers what, by flavour."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynbranch.stub_engine import pages, toy_tokens
from dynbranch.stub_engine.faults import FaultKind, fault_from
from dynbranch.stub_engine.generation import error_body
from dynbranch.stub_engine.matching import ScriptError
from dynbranch.stub_engine.messages_api import Messages
from dynbranch.stub_engine.responses_api import Responses
from dynbranch.stub_engine.script import rules_from
from dynbranch.stub_engine.settings import Flavour
from dynbranch.stub_engine.wire import Call

if TYPE_CHECKING:
    from dynbranch.stub_engine.engine import StubEngine

Page = Callable[[Call], None]
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Router:
    """Pages by method and path. ``/v1/chat/completions/render`` is none: routers that ask for it take a
    404."""

    def __init__(self, engine: StubEngine) -> None:
        self._engine = engine
        self._pages: dict[tuple[str, str], Page] = {
            ("POST", "/v1/chat/completions"): lambda call: engine.generate(call, chat=True),
            ("POST", "/v1/completions"): lambda call: engine.generate(call, chat=False),
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/version"): lambda call: _json(call, {"version": pages.STUB_VERSION}),
            ("GET", "/metrics"): self._metrics,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/stub/requests"): self._requests,
            ("GET", "/stub/faults"): self._list_faults,
            ("POST", "/stub/faults"): self._set_faults,
            ("POST", "/stub/script"): self._set_script,
            ("POST", "/stub/reset"): self._reset,
            **self._of_flavour(),
            **(self._native() if engine.settings.native else {}),
        }

    def _native(self) -> dict[tuple[str, str], Page]:
        messages, responses = Messages(), Responses()
        return {
            ("GET", "/"): lambda call: _json(call, {}),
            ("POST", "/v1/messages"): lambda call: self._engine.generate(call, chat=True, native=messages),
            ("POST", "/v1/responses"): lambda call: self._engine.generate(call, chat=True, native=responses),
        }

    def _of_flavour(self) -> dict[tuple[str, str], Page]:
        settings = self._engine.settings
        match settings.flavour:
            case Flavour.VLLM:
                return {
                    ("GET", "/ping"): self._health,
                    ("POST", "/abort_requests"): self._abort_vllm,
                    ("POST", "/reset_prefix_cache"): self._flush,
                }
            case Flavour.SGLANG:
                return {
                    ("GET", "/health_generate"): self._health,
                    ("POST", "/abort_request"): self._abort_sglang,
                    ("POST", "/flush_cache"): self._flush,
                    ("GET", "/flush_cache"): self._flush,
                    ("GET", "/get_model_info"): lambda call: _json(call, pages.sglang_model_info(settings)),
                    ("GET", "/get_server_info"): lambda call: _json(
                        call, pages.sglang_server_info(settings, settings.latency)
                    ),
                }
            case Flavour.LLAMA_SERVER:
                return {
                    ("GET", "/props"): lambda call: _json(
                        call, pages.llama_properties(settings, self._engine.template, self._engine.starts)
                    ),
                    ("POST", "/apply-template"): self._apply_template,
                }
            case _:
                return {}

    def serve(self, call: Call) -> None:
        method = "GET" if call.method == "HEAD" else call.method
        page = self._pages.get((method, call.path))
        if page is None:
            call.respond(404, error_body("Not Found", 404, "NotFoundError"))
            return
        try:
            page(call)
        except _WrongBody as error:
            call.respond(400, error_body(str(error), 400))

    # -- descriptions --------------------------------------------------------------------------------------

    def _health(self, call: Call) -> None:
        status = self._engine.faults.health_status() or (503 if self._engine.is_loading else 200)
        if self._engine.settings.flavour is Flavour.LLAMA_SERVER:
            body = b'{"status":"ok"}' if status == 200 else error_body("Loading model", status)
        else:
            body = b""
        call.respond(status, body)

    def _models(self, call: Call) -> None:
        if self._engine.is_loading:
            call.respond(503, error_body("Loading model", 503))
        else:
            _json(call, pages.models(self._engine.settings, int(self._engine.started_unix_s)))

    def _metrics(self, call: Call) -> None:
        call.respond(200, pages.metrics(self._engine.settings.flavour, self._engine.readings), _TEXT)

    def _tokenize(self, call: Call) -> None:
        body = _object(call)
        if isinstance(body.get("messages"), list):
            open_answer = body.get("add_generation_prompt", True) is not False
            text = toy_tokens.render(body["messages"], body.get("tools"), open_answer=open_answer)
        else:
            text = str(body.get("prompt", body.get("content", "")))
        tokens = toy_tokens.encode(text.encode("utf-8", "surrogatepass"))
        if self._engine.settings.flavour is Flavour.LLAMA_SERVER:
            _json(call, {"tokens": tokens})
            return
        strings = toy_tokens.pieces(text) if body.get("return_token_strs") else None
        length = self._engine.settings.max_model_len
        found = {"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": strings}
        _json(call, found)

    def _detokenize(self, call: Call) -> None:
        tokens = _object(call).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(one, int) and one >= 0 for one in tokens):
            raise _WrongBody("tokens is not a list of ids")
        try:
            text = toy_tokens.decode(tokens).decode("utf-8", "replace")
        except toy_tokens.UnknownToken as error:
            raise _WrongBody(str(error)) from None
        key = "content" if self._engine.settings.flavour is Flavour.LLAMA_SERVER else "prompt"
        _json(call, {key: text})

    def _apply_template(self, call: Call) -> None:
        messages = _object(call).get("messages")
        if not isinstance(messages, list):
            raise _WrongBody("messages is not a list")
        _json(call, {"prompt": toy_tokens.render(messages)})

    # -- control of the engine -----------------------------------------------------------------------------

    def _abort_vllm(self, call: Call) -> None:
        """An empty list aborts everything, as in vLLM."""
        ids = _object(call).get("request_ids") or []
        if not isinstance(ids, list):
            raise _WrongBody("request_ids is not a list")
        wanted = {str(one) for one in ids}
        self._engine.abort(lambda one: not wanted or one in wanted or one.partition("-")[2] in wanted)
        call.respond(200, b"")

    def _abort_sglang(self, call: Call) -> None:
        """An id matches by its beginning, as in SGLang."""
        body = _object(call)
        rid = str(body.get("rid") or "")
        everything = body.get("abort_all") is True
        if rid or everything:
            self._engine.abort(lambda one: everything or one.startswith(rid))
        call.respond(200, b"")

    def _flush(self, call: Call) -> None:
        if self._engine.flush_cache():
            call.respond(200, b"Cache flushed.\n", b"text/plain")
        else:
            call.respond(400, b"Flush cache failed: requests are running or waiting.\n", b"text/plain")

    # -- control of the stub -------------------------------------------------------------------------------

    def _requests(self, call: Call) -> None:
        _json(call, {"requests": [request.as_json() for request in self._engine.requests]})

    def _list_faults(self, call: Call) -> None:
        _json(call, {"faults": [fault.as_json() for fault in self._engine.faults.active]})

    def _set_faults(self, call: Call) -> None:
        """One fault, a list of them, or ``{"clear": true}``."""
        document = _parsed(call)
        if isinstance(document, dict) and document.get("clear") is True:
            self._engine.faults.clear()
        else:
            try:
                faults = [fault_from(one) for one in (document if isinstance(document, list) else [document])]
            except ScriptError as error:
                raise _WrongBody(str(error)) from None
            if any(fault.kind is FaultKind.REFUSE and fault.for_s is None for fault in faults):
                raise _WrongBody("a refusal that is asked for over the network needs for_s")
            for fault in faults:
                self._engine.faults.add(fault)
                self._engine.enforce(fault)
        self._list_faults(call)

    def _set_script(self, call: Call) -> None:
        """JSON lines, in place of the script that was there."""
        try:
            self._engine.script.rules[:] = rules_from(call.body.decode("utf-8", "replace"), "the body")
        except ScriptError as error:
            raise _WrongBody(str(error)) from None
        self._engine.script.reset()
        _json(call, {"rules": len(self._engine.script.rules)})

    def _reset(self, call: Call) -> None:
        self._engine.reset()
        _json(call, {})


class _WrongBody(Exception):
    """The message says what is wrong."""


def _parsed(call: Call) -> Any:
    try:
        return json.loads(call.body)
    except ValueError as error:
        raise _WrongBody(f"The body is not JSON: {error}") from None


def _object(call: Call) -> dict[str, Any]:
    document = _parsed(call)
    if not isinstance(document, dict):
        raise _WrongBody("The body is not a JSON object.")
    return document


def _json(call: Call, document: Any) -> None:
    call.respond(200, json.dumps(document, separators=(",", ":")).encode())
