"""After which share of a decode its choice can be told.

Real decodes of the embedded model, greedy, through the whole stack: a router that writes a reason and a
handler as JSON that the engine holds it to, and a thought with an action in free text. A choice is *named*
where it first stands in the text, *told* from where the stream predictor has it on top until the end, and
*certain* from where the selector sees it whole. *Spoken* are the names that a gateway tells of it while it
is written, each with the share at which it does. Shares count streamed pieces, about a token each. Recorded
decodes of other models give where the choice begins, from their lengths.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench.result import Tell
from dynbranch.controller.core.predictors.entities import Entities
from dynbranch.controller.core.predictors.port import Candidate, Question, TextKind
from dynbranch.controller.core.predictors.stream import Stream, Visibility, visibility
from dynbranch.demo.harness import models
from dynbranch.demo.measures import Figure, median
from dynbranch.demo.stack import Stack, StackOptions
from dynbranch.demo.workloads import DECISION_TOKENS, decision_schema
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import Origin, Output, Where
from dynbranch.gateway.core.spoken import MenuSpoken, RequestSpoken, RequestTexts, Speech, SpokenNames
from dynbranch.gateway.speaking import latest_texts
from dynbranch.naming.document import parse_body
from dynbranch.records.decisions import Decision, react, routing
from dynbranch.records.loading import Records
from dynbranch.rendering.outputs import GrowingOutput
from dynbranch.rendering.selectors import Selector

ROUTERS = 24
THINKERS = 24
THOUGHT_TOKENS = 96
CHARACTERS_PER_TOKEN = 4
LONGEST_PROMPT_CHARACTERS = 4_000
_TIMEOUT_S = 120.0
_NOW = Instant(0.0)

ROUTER = Selector(Where(Origin.OUTPUT, "decide", path="$.handler"), several=False)
THINKER = Selector(Where(Origin.OUTPUT, "think", regex=r"lookup\[(?P<value>[^\]\n]+)\]"), several=False)

_EXAMPLES = (
    (
        "Question: Who is the mayor of the city where the Alma Bridge stands?\n"
        "Read: The Alma Bridge is a bridge in Torvale. It was built in 1911 by Carl Ostin.",
        "Thought: The bridge stands in Torvale, so I need the mayor of Torvale.\nAction: lookup[Torvale]\n",
    ),
    (
        "Question: Where was the director of Blue Harbour born?\n"
        "Read: Blue Harbour is a 1962 film directed by Irma Lund and starring Peter Vale.",
        "Thought: Irma Lund directed the film, so I need where she was born.\nAction: lookup[Irma Lund]\n",
    ),
)


@dataclass(frozen=True, slots=True)
class Decode:
    """One real decode. ``pieces``: how many it was streamed in; ``named``: after which share of them its
    choice stood in the text for the first time, if only in passing. ``spoken``: names as a gateway tells
    them, each with the share, and whether it is the choice."""

    id: str
    pieces: int
    choice: str
    named: float
    seen: Visibility
    spoken: tuple[tuple[float, bool], ...] = ()


def visibility_figures(
    records: Records, tell: Tell, *, run_model: bool
) -> tuple[dict[str, Figure], dict[str, Any]]:
    figures: dict[str, Figure] = {}
    raw: dict[str, Any] = {}
    if run_model:
        for name, decodes, asked in _decoded(records, tell):
            figures[f"visible_{name}_named_share"] = _median([one.named for one in decodes])
            figures[f"visible_{name}_spoken_share"] = _median([_first_spoken(one) for one in decodes])
            figures[f"visible_{name}_told_share"] = _median([one.seen.told for one in decodes])
            figures[f"visible_{name}_certain_share"] = _median([one.seen.certain for one in decodes])
            raw[name] = {"asked": asked, "chose": len(decodes), "decodes": [asdict(one) for one in decodes]}
    recorded = {"recorded_commands": _command_begins(records), "recorded_calls": _name_ends(records)}
    for name, shares in recorded.items():
        raw[name] = {"n": len(shares), "quartiles": _quartiles(shares)}
        if shares:
            figures[f"visible_{name}_share"] = median(shares)
    return figures, raw


def _median(shares: Sequence[float]) -> Figure:
    return median(shares) if shares else Figure(1.0, 1.0, 1.0, 0)


def _first_spoken(decode: Decode) -> float:
    return next((share for share, is_choice in decode.spoken if is_choice), decode.seen.certain)


def _quartiles(shares: Sequence[float]) -> list[float]:
    ordered = sorted(shares)
    return [round(ordered[len(ordered) * k // 4], 3) for k in (1, 2, 3)] if ordered else []


# Real decodes


def _decoded(records: Records, tell: Tell) -> Iterator[tuple[str, list[Decode], int]]:
    routers = _first_of_each(routing(records), ROUTERS)
    thinkers = _first_of_each(react(records, "musique"), THINKERS)
    with (
        TemporaryDirectory(prefix="dynbranch-predictors-") as folder,
        Stack(StackOptions(state_dir=Path(folder))) as stack,
    ):
        tell("waiting for the engine", 0, 0)
        stack.wait_ready()
        model = models(stack.url)[0]
        for name, decisions, ask, selector in (
            ("router", routers, _router_body, ROUTER),
            ("react", thinkers, _thinker_body, THINKER),
        ):
            found: list[Decode] = []
            for number, decision in enumerate(decisions):
                tell(f"{name} decodes", number, len(decisions))
                question = _with_candidates(decision.question)
                # A router's set is closed; a thinker's is what stands in its request.
                closed = decision.question.candidates is not None
                body = ask(question, model)
                items = list(_streamed(stack.url, body))
                speech = _menu(question) if closed else _open_set(body)
                decode = watched(decision.record, question, items, selector, SpokenNames(speech))
                if decode is not None:
                    found.append(decode)
            yield name, found, len(decisions)


def _first_of_each(decisions: Iterator[Decision], most: int) -> list[Decision]:
    """The first decision of each record, of those with a short prompt."""
    first: dict[str, Decision] = {}
    for decision in decisions:
        first.setdefault(decision.record, decision)
    short = [
        decision
        for decision in first.values()
        if sum(len(text.body) for text in decision.question.texts)
        + sum(len(candidate.about) for candidate in decision.question.candidates or ())
        < LONGEST_PROMPT_CHARACTERS
    ]
    return short[:most]


def _with_candidates(question: Question) -> Question:
    """An open set's candidates are the names that the context ranker proposes."""
    if question.candidates is not None:
        return question
    names = Entities().propose(question, _NOW)
    return Question(question.coordinate, tuple(map(Candidate, names)), question.texts)


def _menu(question: Question) -> Speech:
    return MenuSpoken(candidate.selection for candidate in question.candidates or ())


def _open_set(body: bytes) -> Speech:
    return RequestSpoken(RequestTexts(latest_texts(parse_body(body).value)))


def watched(
    id: str, question: Question, items: Sequence[bytes], selector: Selector, names: SpokenNames
) -> Decode | None:
    """What the stream predictor and a gateway say after each piece; None where the decode holds no one
    choice."""
    output, watch, predictor = GrowingOutput(), selector.watch(), Stream()
    tops: list[str | None] = []
    closed: list[bool] = []
    texts: list[str] = []
    spoken: list[tuple[int, str]] = []
    text = ""
    for item in items:
        added = output.add(item)
        if not added.text:
            continue
        text += added.text
        texts.append(text)
        visible = watch.feed(added)
        begun = [name for one in visible if not one.closed for name in names.begun(one.value)]
        spoken += [(len(texts), name) for name in (*begun, *names.feed(added.text))]
        asked = Question(question.coordinate, question.candidates, partial=text, visible=visible)
        ranking = predictor.propose(asked, _NOW)
        tops.append(ranking[0] if ranking else None)
        closed.append(any(choice.closed for choice in visible))
    selected = selector.select(Output(text=text, finish="stop"))
    if not isinstance(selected, tuple):
        return None
    (choice,) = selected
    named = next((place for place, so_far in enumerate(texts, 1) if choice in so_far), len(texts))
    seen = visibility(tuple(tops), tuple(closed), choice)
    told = tuple((at / len(texts), name == choice) for at, name in spoken)
    return Decode(id, len(tops), choice, named / len(texts), seen, told)


def _router_body(question: Question, model: str) -> bytes:
    names = [candidate.selection for candidate in question.candidates or ()]
    offered = "\n".join(
        f"- {candidate.selection}: {candidate.about.splitlines()[0]}"
        for candidate in question.candidates or ()
    )
    system = (
        f"You route a request to one of these functions:\n{offered}\nAnswer with JSON: a short reason, and"
        " the handler, which is the name of the function to call first."
    )
    schema = {"name": "decide", "schema": decision_schema(names), "strict": True}
    return _body(
        model,
        [{"role": "system", "content": system}, {"role": "user", "content": _text(question, TextKind.ASKED)}],
        max_tokens=DECISION_TOKENS,
        response_format={"type": "json_schema", "json_schema": schema},
    )


def _thinker_body(question: Question, model: str) -> bytes:
    system = (
        "Answer questions by looking names up. Write one line that begins with Thought: and then one line of"
        " the form Action: lookup[NAME], with a name from what was read."
    )
    shown = [
        {"role": role, "content": said}
        for example in _EXAMPLES
        for role, said in zip(("user", "assistant"), example, strict=True)
    ]
    user = f"Question: {_text(question, TextKind.ASKED)}\nRead: {_text(question, TextKind.READ)}"
    return _body(
        model,
        [{"role": "system", "content": system}, *shown, {"role": "user", "content": user}],
        max_tokens=THOUGHT_TOKENS,
        stop=["\nRead:", "\nQuestion:"],
    )


def _text(question: Question, kind: TextKind) -> str:
    return " ".join(text.body for text in question.of_kind(kind))


def _body(model: str, messages: list[dict[str, str]], **more: Any) -> bytes:
    body = {"model": model, "messages": messages, "temperature": 0, "stream": True, **more}
    return json.dumps(body, ensure_ascii=False).encode()


def _streamed(url: str, body: bytes) -> Iterator[bytes]:
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield line[len(b"data: ") :].strip()


# Recorded decodes


def _command_begins(records: Records) -> list[float]:
    """A coding agent's commands: where in its answer the command begins. The command ends the answer; its
    tokens are taken as a quarter of its characters."""
    return [
        min(1.0, max(0.0, 1 - step["n"] / CHARACTERS_PER_TOKEN / step["out"]))
        for run in records.runs
        for step in run["steps"]
        if step.get("out") and step.get("n")
    ]


def _name_ends(records: Records) -> list[float]:
    """Tool calls: after which share of its characters, name first, a call's name is there whole."""
    return [
        len(step["h"]) / (len(step["h"]) + len(step["a"]))
        for run in records.calls
        for step in run["steps"]
        if step.get("h") and step.get("a")
    ]
