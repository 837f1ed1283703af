"""The demo's four workflows as a harness runs them: records and earlier answers in, the next request out.

Each is a generator that yields what is asked next and is sent the text of the answer, so that any harness can
drive it. The bodies are byte for byte what the ordinary ``openai`` client and ``json.dumps`` make. Nothing
here knows of templates: a harness that is unmodified would not.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dynbranch.demo.passages import SOURCE
from dynbranch.demo.records import Dialogue, Function, Passage, Question, RoutingRequest, Turn
from dynbranch.demo.workloads import arguments_schema

ROUTING_CHAIN: Final = "routing-chain"
REACT: Final = "react"
SUB_AGENTS: Final = "sub-agents"
MENUS: Final = "menus"

MAX_CALLS: Final = 3
MAX_HOPS: Final = 2
MAX_TOPICS: Final = 2
OFFERED_TOPICS: Final = 4

REASON_CHARACTERS: Final = 32
THOUGHT_CHARACTERS: Final = 48
NAME_CHARACTERS: Final = 40

Message: TypeAlias = dict[str, Any]
Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a harness. ``target`` is the model's id or the tool's name. ``waits``: a person is
    waited for before it."""

    stage: str
    kind: str
    target: str
    body: bytes
    agent: str = "main"
    reads: tuple[str, ...] = ()
    waits: bool = False


Flow: TypeAlias = Generator[Ask, str, str]
"""Yields requests, is sent the text of each answer, and returns the result."""


@dataclass(frozen=True, slots=True)
class Model:
    """Writes chat requests for one model, as the ``openai`` client writes them."""

    id: str

    def ask(
        self,
        stage: str,
        messages: list[Message],
        *,
        max_tokens: int,
        schema: Schema | None = None,
        stream: bool = False,
        **more: Any,
    ) -> Ask:
        body: dict[str, Any] = {"model": self.id}
        if stream:
            body["stream"] = True
        body |= {"messages": messages, "max_tokens": max_tokens}
        if schema is not None:
            form = {"name": stage, "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        if stream:
            body["stream_options"] = {"include_usage": True}
        body["temperature"] = 0
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        return Ask(stage, "chat", self.id, text.encode(), **more)


def tool(name: str, arguments: Mapping[str, Any], **more: Any) -> Ask:
    return Ask(name, "tool", name, json.dumps(arguments).encode(), **more)


def routing_chain(request: RoutingRequest, model: Model) -> Flow:
    """Choose a function, write its arguments, play it, and again while the router says so; then sum up.

    What is written and played for a function does not depend on when it was chosen.
    """
    user: Message = {"role": "user", "content": request.user}
    names = [function.name for function in request.functions]
    offers = [_compact(_offer(function)) for function in request.functions]
    offered = "\n".join(offers)
    system = (
        f"You route a request to functions. Each line is one function:\n{offered}\nAnswer with JSON: a short "
        "reason, the handler to call next, and whether more calls are needed after it."
    )
    steps: list[Message] = []
    left = names
    for _ in range(min(MAX_CALLS, len(names))):
        schema = _object(
            reason={"type": "string", "maxLength": REASON_CHARACTERS},
            handler={"type": "string", "enum": left},
            more={"type": "boolean"},
        )
        messages = [_system(system), user, *steps]
        decision = yield model.ask("route", messages, max_tokens=96, schema=schema)
        said = _members(decision)
        handler = str(said["handler"]) if said.get("handler") in left else left[0]
        left = [name for name in left if name != handler]
        offer = offers[names.index(handler)]
        function = request.functions[names.index(handler)]
        arguments = yield model.ask(
            "arguments",
            [_system(f"Write the arguments of this function as JSON.\n{offer}"), user],
            max_tokens=96,
            schema=arguments_schema(function),
        )
        result = yield model.ask(
            "execute",
            [
                _system(f"You are this function. Answer a call with its result in a sentence.\n{handler}"),
                {"role": "user", "content": arguments},
            ],
            max_tokens=24,
        )
        steps += _step(decision, f"Result: {result}")
        if said.get("more") is not True:
            break
    summing_up = "Answer the request from the results in a few sentences."
    return (yield model.ask("aggregate", [_system(summing_up), user, *steps], max_tokens=64, stream=True))


def react(question: Question, model: Model) -> Flow:
    """Think of a name, look it up, note what its passage says, and again; then answer.

    The note is taken from the passage and the question, not from the thought: another thought that leads to
    the same passage leads to the same note.
    """
    user: Message = {"role": "user", "content": question.question}
    system = (
        "You answer a question step by step by looking up names. Answer with JSON: a short thought, the "
        "entity to look up next, which is a name in the question or the notes, and whether you can answer."
    )
    schema = _object(
        thought={"type": "string", "maxLength": THOUGHT_CHARACTERS},
        entity={"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS},
        finish={"type": "boolean"},
    )
    steps: list[Message] = []
    for _ in range(MAX_HOPS):
        messages = [_system(system), user, *steps]
        thought = yield model.ask("think", messages, max_tokens=96, schema=schema)
        said = _members(thought)
        entity = said.get("entity")
        if said.get("finish") is True or not isinstance(entity, str):
            break
        passage = yield from _looked_up(entity)
        if passage is None:
            break
        id, text = passage
        note = yield model.ask(
            "note",
            [
                _system("Note in one sentence what the passage says about the question."),
                user,
                *_read(id, text),
            ],
            max_tokens=40,
            reads=(f"{SOURCE}/{id}",),
        )
        steps += _step(thought, f"Note: {note}")
    answering = "Answer the question from the notes in a few words."
    return (yield model.ask("answer", [_system(answering), user, *steps], max_tokens=16, stream=True))


def sub_agents(question: Question, topics: Sequence[str], model: Model) -> Flow:
    """A lead picks a topic, a researcher looks it up and reports, and again; then the lead writes the answer.

    A report depends on its topic alone, so that it serves every question that asks for it.
    """
    user: Message = {"role": "user", "content": question.question}
    listed = "\n".join(f"- {topic}" for topic in topics)
    system = (
        f"You lead researchers who know these topics:\n{listed}\nAnswer with JSON: a short plan, the topic "
        "to research next, and whether the reports are enough."
    )
    steps: list[Message] = []
    left = list(topics)
    for _ in range(min(MAX_TOPICS, len(topics))):
        schema = _object(
            plan={"type": "string", "maxLength": THOUGHT_CHARACTERS},
            topic={"type": "string", "enum": left},
            enough={"type": "boolean"},
        )
        messages = [_system(system), user, *steps]
        plan = yield model.ask("plan", messages, max_tokens=96, schema=schema, agent="lead")
        said = _members(plan)
        topic = said.get("topic")
        if said.get("enough") is True or not isinstance(topic, str):
            break
        left = [one for one in left if one != topic]
        passage = yield from _looked_up(topic, agent="researcher")
        if passage is None:
            break
        id, text = passage
        report = yield model.ask(
            "report",
            [
                _system("Report in two sentences what the passage says about the topic."),
                {"role": "user", "content": topic},
                *_read(id, text),
            ],
            max_tokens=64,
            reads=(f"{SOURCE}/{id}",),
            agent="researcher",
        )
        steps += _step(plan, f"Report: {report}")
    writing = "Answer the question from the reports in a few words."
    messages = [_system(writing), user, *steps]
    return (yield model.ask("synthesise", messages, max_tokens=16, stream=True, agent="lead"))


def menus(dialogue: Dialogue, model: Model) -> Flow:
    """Offer a menu, wait for the person's pick, act on it, and tell what was done; turn after turn.

    What follows a pick is short: on one thread of a small machine it lasts about as long as a person thinks.
    """
    told = ""
    for turn in dialogue.turns:
        opening = [_system("You assist in a chat with buttons. Be brief."), _situation(turn)]
        offer = yield model.ask("offer", opening, max_tokens=12)
        pick: Message = {"role": "user", "content": f"I pick: {turn.pick}"}
        picked = [*opening, _assistant(offer), pick]
        act = yield model.ask("act", picked, max_tokens=12, waits=True)
        done = [pick, _assistant(act), {"role": "user", "content": "Tell me what you did."}]
        told = yield model.ask("tell", done, max_tokens=12, stream=True)
    return told


def topics_of(question: Question, passages: Mapping[str, Passage]) -> tuple[str, ...]:
    """The titles of the passages that the question takes, among some that it does not, by name."""
    others = [id for id in question.pool if id not in question.gold]
    ids = [*question.gold, *others]
    titles = dict.fromkeys(passages[id].title for id in ids)
    return tuple(sorted(list(titles)[:OFFERED_TOPICS]))


def _looked_up(name: str, agent: str = "main") -> Generator[Ask, str, tuple[str, str] | None]:
    """The id of the passage that fits best, and what the store says of it; None where nothing fits."""
    found = yield tool("search", {"query": name, "k": 1}, agent=agent)
    results = json.loads(found)["results"]
    if not results:
        return None
    id = str(results[0]["id"])
    text = yield tool("get", {"id": id}, agent=agent)
    return id, text


def _read(id: str, text: str) -> list[Message]:
    """A tool's result goes in word for word: that is how what is made from it is known to descend from it."""
    function = {"name": "get", "arguments": json.dumps({"id": id})}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": text},
    ]


def _situation(turn: Turn) -> Message:
    options = "\n".join(f"{number}. {option}" for number, option in enumerate(turn.options, 1))
    return {"role": "user", "content": f"{turn.service}: {turn.situation}\nAsk me to pick one:\n{options}"}


def _step(decision: str, outcome: str) -> list[Message]:
    return [_assistant(decision), {"role": "user", "content": outcome}]


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _offer(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "description": function.description,
        "parameters": arguments_schema(function),
    }


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _members(text: str) -> dict[str, Any]:
    """A decision that was cut off before it was JSON says nothing."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
