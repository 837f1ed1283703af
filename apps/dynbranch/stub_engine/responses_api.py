"""OpenAI Responses, as far as a harness needs it of an engine. Nothing is kept."""

from __future__ import annotations

from typing import Any

from dynbranch.stub_engine.answer import Answer
from dynbranch.stub_engine.asking import BadRequest
from dynbranch.stub_engine.generation import Shape
from dynbranch.stub_engine.native import Block, Counted, Kind, blocks_of, compact, function, shown
from dynbranch.stub_engine.toy_tokens import content_text

_WITHIN = "__"
"""Between a namespace and the name of a tool in it, as the script names it."""


class Responses:
    def as_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
            raise BadRequest("input is no text and no list of items.", param="input")
        messages: list[dict[str, Any]] = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        for item in items:
            _add(messages, item)
        chat: dict[str, Any] = {"model": body.get("model"), "messages": messages}
        tools = [
            function(tool, "parameters", name)
            for name, _, tool in _tools(body)
            if tool.get("type") in ("function", "custom")
        ]
        if tools:
            chat["tools"] = tools
        if body.get("max_output_tokens"):
            chat["max_tokens"] = body["max_output_tokens"]
        for name in ("temperature", "stream"):
            if name in body:
                chat[name] = body[name]
        return chat

    def spelling(self, body: dict[str, Any], answer: Answer, shape: Shape) -> ResponseSpelling:
        return ResponseSpelling(answer, shape, {name: (space, tool) for name, space, tool in _tools(body)})


def _tools(body: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """As the script names it, its namespace, and the tool."""
    found = []
    for tool in body.get("tools") or ():
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            space = str(tool.get("name"))
            found += [(f"{space}{_WITHIN}{one.get('name')}", space, one) for one in tool.get("tools") or ()]
        elif isinstance(tool, dict):
            found.append((str(tool.get("name")), "", tool))
    return found


def _add(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind in ("function_call_output", "custom_tool_call_output"):
        text = content_text(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
    elif kind == "message" and item.get("role") != "assistant":
        messages.append({"role": item.get("role"), "content": content_text(item.get("content"))})
    elif kind in ("message", "function_call", "custom_tool_call", "reasoning"):
        # What the model said at once is one message.
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        message = messages[-1]
        if kind == "message":
            message["content"] += content_text(item.get("content"))
        elif kind != "reasoning":
            space = item.get("namespace")
            name = f"{space}{_WITHIN}{item.get('name')}" if space else item.get("name")
            called = {"name": name, "arguments": item.get("arguments", item.get("input", ""))}
            call = {"id": item.get("call_id"), "type": "function", "function": called}
            message.setdefault("tool_calls", []).append(call)


class ResponseSpelling:
    def __init__(self, answer: Answer, shape: Shape, tools: dict[str, tuple[str, dict[str, Any]]]) -> None:
        self._shape = shape
        self._blocks = blocks_of(answer)
        self._tools = tools
        self._number = 0

    def opening(self) -> str:
        return self._event("response.created", {"response": self._response("in_progress", [], None)})

    def tokens(self) -> list[str]:
        found = []
        for block, number, piece in shown(self._blocks):
            text = ""
            if number == 0:
                item = self._item(block, begun=True)
                text = self._event("response.output_item.added", {"output_index": block.place, "item": item})
            if piece and block.kind is not Kind.REASONING:
                kind = "output_text" if block.kind is Kind.TEXT else "function_call_arguments"
                place = {"item_id": self._id(block), "output_index": block.place, "content_index": 0}
                text += self._event(f"response.{kind}.delta", {**place, "delta": piece})
            if number == len(block.pieces) - 1:
                item = self._item(block, begun=False)
                text += self._event("response.output_item.done", {"output_index": block.place, "item": item})
            found.append(text)
        return found

    def closing(self, tokens: int, reason: str, counted: Counted) -> str:
        return self._event(*self._ended(reason, counted))

    def whole(self, reason: str, counted: Counted) -> str:
        return compact(self._ended(reason, counted)[1]["response"])

    def _ended(self, reason: str, counted: Counted) -> tuple[str, dict[str, Any]]:
        status = "incomplete" if reason in ("length", "content_filter") else "completed"
        items = [self._item(block, begun=False) for block in self._blocks]
        return f"response.{status}", {"response": self._response(status, items, counted)}

    def _response(self, status: str, items: list[Any], counted: Counted | None) -> dict[str, Any]:
        usage = None
        if counted is not None:
            usage = {
                "input_tokens": counted.prompt,
                "input_tokens_details": {"cached_tokens": counted.cached},
                "output_tokens": counted.output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counted.prompt + counted.output,
            }
        shape = self._shape
        said = {"id": f"resp_{shape.id}", "object": "response", "created_at": shape.created}
        return {**said, "status": status, "model": shape.model, "output": items, "usage": usage}

    def _item(self, block: Block, *, begun: bool) -> dict[str, Any]:
        text = "" if begun else block.text
        said: dict[str, Any] = {"id": self._id(block)}
        match block.kind:
            case Kind.TEXT:
                part = {"type": "output_text", "text": text, "annotations": []}
                content = [] if begun else [part]
                return {**said, "type": "message", "role": "assistant", "content": content}
            case Kind.REASONING:
                return {
                    **said,
                    "type": "reasoning",
                    "summary": [],
                    "content": [] if begun else [{"type": "reasoning_text", "text": text}],
                }
            case Kind.CALL:
                assert block.call is not None
                return {**said, **self._called(block.call.name, text), "call_id": block.call.id}

    def _called(self, name: str, arguments: str) -> dict[str, Any]:
        space, tool = self._tools.get(name, ("", {}))
        if tool.get("type") == "custom":
            return {"type": "custom_tool_call", "name": name, "input": arguments}
        if space:
            name = name.removeprefix(space + _WITHIN)
        found = {"type": "function_call", "name": name, "arguments": arguments}
        return {**found, "namespace": space} if space else found

    def _id(self, block: Block) -> str:
        return f"item_{self._shape.id}_{block.place}"

    def _event(self, kind: str, members: dict[str, Any]) -> str:
        number, self._number = self._number, self._number + 1
        return f"event: {kind}\ndata: {compact({'type': kind, 'sequence_number': number, **members})}\n\n"
