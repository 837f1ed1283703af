"""The demo's flows without an engine: a model's part is played by arithmetic on the request.

Answers fit the schema that a request asks for, and the same request gets the same answer. Tools are the real
passage store.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynbranch.demo.flows import (
    MENUS,
    REACT,
    ROUTING_CHAIN,
    SUB_AGENTS,
    Ask,
    Flow,
    Model,
    menus,
    react,
    routing_chain,
    sub_agents,
    topics_of,
)
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.records import dialogues, passages, questions, routing_requests
from dynbranch.domain.template import Output, StageKind
from dynbranch.templates.traffic import Exchange

_WORDS = (
    "a", "the", "so", "then", "river", "county", "one", "two", "née", "10.0", '"quoted"', "line\nbreak",
    "{{ x }}", "back\\slash", "</b>", "日本",
)  # fmt: skip
_STEP_MS = 10.0
_YES = 0.4
"""How often a truth value is true: "more" and "finish" alike, so that short and long workflows come about."""


@dataclass(frozen=True, slots=True)
class Performance:
    """One record's flow."""

    workflow_type: str
    record: str
    flow: Flow


def performances(model: str) -> Iterator[Performance]:
    """Every shipped record in the workflow that it is for."""
    writer = Model(model)
    by_id = {passage.id: passage for passage in passages()}
    for request in routing_requests():
        yield Performance(ROUTING_CHAIN, request.id, routing_chain(request, writer))
    for question in questions():
        yield Performance(REACT, question.id, react(question, writer))
    for question in questions():
        topics = topics_of(question, by_id)
        yield Performance(SUB_AGENTS, question.id, sub_agents(question, topics, writer))
    for dialogue in dialogues():
        yield Performance(MENUS, dialogue.id, menus(dialogue, writer))


def rehearse(performance: Performance, store: PassageStore, *, tagged: bool = True) -> list[Exchange]:
    """The traffic of one flow. ``tagged``: the harness names its stages."""
    exchanges: list[Exchange] = []
    try:
        ask = next(performance.flow)
        while True:
            text = answer(ask, store)
            at_ms = len(exchanges) * _STEP_MS
            exchanges.append(_exchange(performance, ask, text, at_ms, tagged=tagged))
            ask = performance.flow.send(text)
    except StopIteration:
        return exchanges


def answer(ask: Ask, store: PassageStore) -> str:
    asked = json.loads(ask.body)
    if ask.kind == "tool":
        return _tool_result(ask.target, asked, store)
    return model_says(asked)


def model_says(asked: Mapping[str, Any]) -> str:
    """The answer to a chat request. What only says how it is sent changes nothing."""
    shown = [asked["messages"], asked.get("response_format")]
    chance = random.Random(hashlib.sha256(json.dumps(shown).encode()).digest())
    form = asked.get("response_format")
    if form is None:
        return " ".join(chance.choices(_WORDS, k=chance.randint(2, 8)))
    return json.dumps(_instance(form["json_schema"]["schema"], chance), ensure_ascii=False)


def _exchange(performance: Performance, ask: Ask, text: str, at_ms: float, *, tagged: bool) -> Exchange:
    return Exchange(
        workflow_type=performance.workflow_type,
        workflow_id=performance.record,
        kind=StageKind(ask.kind),
        target=ask.target,
        body=ask.body,
        output=Output(text, finish="stop"),
        stage=ask.stage if tagged else "",
        agent_id=ask.agent,
        at_ms=at_ms,
        done_ms=at_ms + _STEP_MS / 2,
        outcome="miss",
        reads=ask.reads if ask.kind == "chat" else None,
    )


def _tool_result(name: str, arguments: Any, store: PassageStore) -> str:
    """As the passage service writes it."""
    if name == "search":
        found = store.search(arguments["query"], arguments["k"])
        value: Any = {"results": [{"id": f.id, "title": f.title, "score": f.score} for f in found]}
    else:
        got = store.get(arguments["id"])
        if got is None:
            value = {"id": arguments["id"], "found": False}
        else:
            passage = got.passage
            value = {"id": passage.id, "title": passage.title, "text": passage.text, "version": got.version}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _instance(schema: Any, chance: random.Random) -> Any:
    """A value of the schemas that the flows use."""
    match schema:
        case {"enum": choices}:
            return chance.choice(choices)
        case {"type": "object", "properties": properties}:
            return {name: _instance(inner, chance) for name, inner in properties.items()}
        case {"type": "array", "items": items}:
            return [_instance(items, chance) for _ in range(chance.randint(0, 2))]
        case {"type": "boolean"}:
            return chance.random() < _YES
        case {"type": "integer" | "number" as kind}:
            return chance.randint(0, 99) if kind == "integer" else round(chance.uniform(0, 9), 2)
        case _:
            return _phrase(schema, chance)


def _phrase(schema: Any, chance: random.Random) -> str:
    text = " ".join(chance.choices(_WORDS, k=chance.randint(1, 5)))
    return text[: int(schema.get("maxLength", 80))]


def traffic(store: PassageStore, model: str, kinds: Sequence[str] = ()) -> list[Exchange]:
    """All flows of these workflow types, or of all."""
    return [
        exchange
        for performance in performances(model)
        if not kinds or performance.workflow_type in kinds
        for exchange in rehearse(performance, store)
    ]
