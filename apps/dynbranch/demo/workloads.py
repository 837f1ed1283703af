"""The demonstration's two workloads, as agents run them: route a request, and retrieve, then read.

Every text the model sees follows from the record and from what earlier steps returned, so that a step which
is run again sends the same request.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynbranch.demo.harness import Call, Harness, Workflow
from dynbranch.demo.passages import SOURCE
from dynbranch.demo.records import Function, Question, RoutingRequest

ROUTING = "routing"
RETRIEVAL = "retrieve-then-read"

PASSAGES_READ = 2
REASON_CHARACTERS = 32
TEXT_CHARACTERS = 32
LIST_ITEMS = 4
DECISION_TOKENS = 64
ARGUMENT_TOKENS = 80
ANSWER_TOKENS = 16
ROUTING_CALLS = 2
RETRIEVAL_CALLS = PASSAGES_READ + 2
"""Of one record."""


@dataclass(frozen=True, slots=True)
class Task:
    """One record of one workload."""

    workload: str
    id: str
    run: Callable[[Harness, Workflow], None]


def tasks(requests: Sequence[RoutingRequest], questions: Sequence[Question]) -> list[Task]:
    routing = [Task(ROUTING, r.id, lambda h, w, r=r: route(h, w, r)) for r in requests]  # type: ignore[misc]
    reading = [Task(RETRIEVAL, q.id, lambda h, w, q=q: answer(h, w, q)) for q in questions]  # type: ignore[misc]
    return [*routing, *reading]


def perform(
    harness: Harness, todo: Sequence[Task], *, run: str, chance: random.Random
) -> Iterator[tuple[Task, str, list[Call]]]:
    """Run the tasks one after the other; yields each with its trace id and its calls.

    One at a time because the engine of the demonstration repeats itself only then: on this CPU engine the
    output of a request can depend on the requests that share its batch.
    """
    for task in todo:
        trace_id, span_id = f"{chance.getrandbits(128):032x}", f"{chance.getrandbits(64):016x}"
        workflow = harness.workflow(task.workload, task.id, run, f"00-{trace_id}-{span_id}-01")
        task.run(harness, workflow)
        yield task, trace_id, workflow.calls


def route(harness: Harness, workflow: Workflow, request: RoutingRequest) -> None:
    """Decide among the offered functions, then write the arguments of the chosen one."""
    names = [f.name for f in request.functions]
    offered = "\n".join(f"- {f.name}: {f.description}" for f in request.functions)
    decision = harness.chat(
        workflow,
        "decide",
        [
            {
                "role": "system",
                "content": f"You route a request to one of these functions:\n{offered}\nAnswer with JSON: "
                "a short reason, and the handler, which is the name of the function to call first.",
            },
            {"role": "user", "content": request.user},
        ],
        max_tokens=DECISION_TOKENS,
        schema=decision_schema(names),
    )
    chosen = request.functions[names.index(handler(decision.text, names))]
    harness.chat(
        workflow,
        "arguments",
        [
            {
                "role": "system",
                "content": f"Write the arguments of the function {chosen.name} as JSON.\n"
                + json.dumps(chosen.as_json(), ensure_ascii=False),
            },
            {"role": "user", "content": request.user},
        ],
        max_tokens=ARGUMENT_TOKENS,
        schema=arguments_schema(chosen),
    )


def answer(harness: Harness, workflow: Workflow, question: Question) -> None:
    """Search, get the best passages, and answer from them."""
    found = harness.tool(
        workflow,
        "search",
        {"query": question.question, "k": PASSAGES_READ},
        step="search",
        reads=(f"{SOURCE}/*",),
    )
    ids = [result["id"] for result in json.loads(found.text)["results"]]
    read = [
        harness.tool(workflow, "get", {"id": id}, step=f"get-{place}", reads=(f"{SOURCE}/{id}",))
        for place, id in enumerate(ids)
    ]
    harness.chat(
        workflow,
        "answer",
        reading_messages(question.question, ids, [call.text for call in read]),
        max_tokens=ANSWER_TOKENS,
        reads=tuple(f"{SOURCE}/{id}" for id in ids),
        stream=True,
    )


def reading_messages(question: str, ids: Sequence[str], texts: Sequence[str]) -> list[dict[str, Any]]:
    """The tools' results go in word for word: that is how an answer is known to descend from them."""
    calls = [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": "get", "arguments": json.dumps({"id": id})},
        }
        for place, id in enumerate(ids)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{place}", "content": text} for place, text in enumerate(texts)
    ]
    return [
        {"role": "system", "content": "Answer the question from the passages in a few words."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
    ]


def handler(decision: str, names: Sequence[str]) -> str:
    """The chosen function; the first one offered when the decision was cut off before it named one."""
    try:
        chosen = json.loads(decision).get("handler")
    except (ValueError, AttributeError):
        return names[0]
    return chosen if chosen in names else names[0]


def decision_schema(names: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "maxLength": REASON_CHARACTERS},
            "handler": {"type": "string", "enum": list(names)},
        },
        "required": ["reason", "handler"],
        "additionalProperties": False,
    }


def arguments_schema(function: Function) -> dict[str, Any]:
    """The function's parameters, reduced to what constrains a short answer: types, choices and bounds."""
    properties = function.parameters.get("properties", {})
    return {
        "type": "object",
        "properties": {name: _bounded(schema) for name, schema in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    match schema:
        case {"enum": choices}:
            return {"type": schema.get("type", "string"), "enum": choices}
        case {"type": "string"}:
            return {"type": "string", "maxLength": TEXT_CHARACTERS}
        case {"type": "array", "items": items}:
            return {"type": "array", "items": _bounded(items), "maxItems": LIST_ITEMS}
        case _:
            return {"type": schema["type"]}
