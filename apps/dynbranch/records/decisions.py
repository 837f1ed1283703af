"""Decisions as questions: what was known before each fell, and what it came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dynbranch.controller.core.predictors.entities import same_name
from dynbranch.controller.core.predictors.port import Candidate, Coordinate, Question, Text, TextKind
from dynbranch.records.loading import Record, Records, tuned
from dynbranch.wording.words import name_words

TENANT = "bench"
MENU_KINDS = ("OFFER_INTENT", "REQ_MORE", "CONFIRM", "OFFER", "VALUE")
NEXT_INTENT = ("OFFER_INTENT", "REQ_MORE")
"""Menus of what to do next: whether to do what is offered, and what else is wanted."""

Same = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Decision:
    """``record`` is the request, question, dialogue or run that it belongs to; ``kind`` tells decisions of
    one workload apart."""

    record: str
    question: Question
    selection: str
    kind: str = ""

    @property
    def tuned(self) -> bool:
        return tuned(self.record)


def exactly(proposed: str, selection: str) -> bool:
    return proposed == selection


def strictly(proposed: str, selection: str) -> bool:
    """The same words, whatever their case and accents."""
    return name_words(proposed) == name_words(selection)


def loosely(proposed: str, selection: str) -> bool:
    """One name holds the other and is at most twice as long: both lead to one passage."""
    return same_name(proposed, selection)


# Routing


def routing(records: Records) -> Iterator[Decision]:
    """Each call of a request, in the order of the record: which of the request's functions comes next.

    All functions are candidates at each call, also those that were called already.
    """
    at = Coordinate(TENANT, "routing", "handler")
    for request in records.routing:
        candidates = tuple(Candidate(function["name"], _about(function)) for function in request["fns"])
        asked = (Text(TextKind.ASKED, request["user"]),)
        picked: tuple[str, ...] = ()
        for call in request["steps"]:
            question = Question(at, candidates, asked, picked=picked, trail=picked)
            yield Decision(request["id"], question, call["h"])
            picked = (*picked, call["h"])


def _about(function: Record) -> str:
    """Description, and names, descriptions and choices of its parameters."""
    said = [function.get("description", "")]
    for name, schema in function["parameters"].get("properties", {}).items():
        said += [name, schema.get("description", ""), *map(str, schema.get("enum") or ())]
    return "\n".join(said)


# ReAct


def react(records: Records, source: str, *, step: bool = True, given: bool = False) -> Iterator[Decision]:
    """After each passage that names what is looked up next: which name that is.

    ``step``: the workflow's own last words are known, that is the sub-question (MuSiQue) or the name
    (HotpotQA) that led to the passage. ``given``: the candidates that come with the data are the closed set.
    """
    at = Coordinate(TENANT, source, "next_name")
    for question in records.questions:
        if question["src"] != source:
            continue
        for place, hop in enumerate(question["hops"]):
            selection = _next_name(question["hops"], place, source)
            if selection is None:
                continue
            passage = records.passages[hop["p"]]
            texts = [Text(TextKind.ASKED, question["q"])]
            if step:
                texts.append(Text(TextKind.STEP, hop["sub"] if source == "musique" else hop["ent"]))
            texts.append(Text(TextKind.READ, passage["x"], passage["t"]))
            yield Decision(
                question["id"],
                Question(
                    at,
                    tuple(map(Candidate, hop["cands"])) if given else None,
                    tuple(texts),
                    picked=_read_before(question["hops"], place, source),
                ),
                selection,
            )


def _next_name(hops: list[Record], place: int, source: str) -> str | None:
    """MuSiQue: the hop's answer, where a later hop refers to it."""
    if source != "musique":
        found: str | None = hops[place].get("next")
        return found
    mark = f"#{place + 1}"
    return hops[place]["ans"] if any(mark in hop["raw"] for hop in hops[place + 1 :]) else None


def _read_before(hops: list[Record], place: int, source: str) -> tuple[str, ...]:
    if source != "musique":
        return (hops[place]["ent"],)
    return tuple(hop["ans"] for hop in hops[:place])


# HCI


def dialogues(records: Records, *, services: bool = True) -> Iterator[Decision]:
    """Each menu of a dialogue: what the person picks. The menu is what was ever picked from it.

    ``services``: which services the session has is known, as the functions that a harness offers in each
    request are. They are those that the dialogue uses at some time; without them only those used so far are
    known.
    """
    for dialogue in records.dialogues:
        trail: tuple[str, ...] = ()
        used: tuple[str, ...] = ()
        session = tuple(sorted(dialogue["sv"]))
        for branch in dialogue["br"]:
            service = branch["sv"]
            used = used if service in used else (*used, service)
            left = len(set(session) - set(used))
            known = (f"{left} of {len(session)} left",) if services else ()
            special = (" ".join(session), " > ".join(used)) if services else (" > ".join(used),)
            yield Decision(
                dialogue["id"],
                Question(
                    Coordinate(TENANT, "dialogue", branch["kind"]),
                    _menu(records, branch),
                    facts=(*known, branch["ctx"], service, *special),
                    trail=trail,
                ),
                branch["pick"],
                branch["kind"],
            )
            trail = (*trail, f"{branch['kind']}:{branch['pick']}")[-4:]


def _menu(records: Records, branch: Record) -> tuple[Candidate, ...]:
    key = f"{branch['sv'].partition('_')[0]}|{branch['ctx']}"
    options: Any = branch.get("opts") or records.menus.get(key, ())
    return tuple(map(Candidate, options))


# Sub-agents and commands


def subagents(records: Records) -> Iterator[Decision]:
    """The next sub-question of a question, after those before it."""
    at = Coordinate(TENANT, "subagent", "sub_question")
    for question in records.subagents:
        trail: tuple[str, ...] = ()
        for sub in question["subs"]:
            if trail:
                yield Decision(question["id"], Question(at, trail=trail), sub["sub"])
            trail = (*trail, sub["sub"])


def commands(records: Records) -> Iterator[Decision]:
    """The next command of a run, by its digest, after those before it in the same repository."""
    at = Coordinate(TENANT, "commands", "command")
    for run in records.runs:
        trail: tuple[str, ...] = ()
        for step in run["steps"]:
            yield Decision(run["id"], Question(at, facts=(run["repo"],), trail=trail), step["h"])
            trail = (*trail, step["h"])[-4:]
