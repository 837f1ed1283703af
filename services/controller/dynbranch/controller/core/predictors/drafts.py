"""The draft model's pure part: what it is asked, and how its answers rank the candidates."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dynbranch.controller.core.predictors.port import Question, Text, TextKind
from dynbranch.wording.words import holds, name_words

MOST_CHARACTERS = 4_000
"""Of all texts together: a small model reads little, and a draft must be there before the decision is."""

_ASK = {
    TextKind.ASKED: "Task",
    TextKind.STEP: "Next aim",
    TextKind.READ: "Read",
    TextKind.OUTPUT: "Offered",
}


def draft_body(question: Question, model: str, *, max_tokens: int, temperature: float, seed: int) -> bytes:
    """A Chat Completions body that asks what comes next, in a few words."""
    names = [candidate.selection for candidate in question.candidates or ()]
    shown = "\n".join(f"- {name}" for name in names)
    system = "Name what the task needs next. Answer with the name only."
    if names:
        system += f" Choose one of:\n{shown}"
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": "\n\n".join(_shown(question.texts)) or "What comes next?"},
        ],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    return json.dumps(body, ensure_ascii=False).encode()


def _shown(texts: Sequence[Text]) -> list[str]:
    """The last texts, as many as fit, in their order."""
    left = MOST_CHARACTERS
    shown: list[str] = []
    for text in reversed(texts):
        if left <= 0:
            break
        title = f" ({text.title})" if text.title else ""
        shown.append(f"{_ASK[text.kind]}{title}: {text.body[:left]}")
        left -= len(text.body)
    return shown[::-1]


def ranked_by_drafts(question: Question, drafts: Sequence[str]) -> tuple[str, ...]:
    """Candidates by how many drafts name them, of equals the one named earlier in a draft. In an open set
    every draft's first line is a candidate."""
    named: dict[str, list[int]] = {}
    for draft in drafts:
        for selection, place in _named(question, draft):
            named.setdefault(selection, []).append(place)
    order = sorted(named, key=lambda selection: (-len(named[selection]), min(named[selection])))
    return tuple(order[: question.at_most])


def _named(question: Question, draft: str) -> list[tuple[str, int]]:
    if question.candidates is None:
        lines = draft.strip().splitlines()
        line = lines[0].strip(" .\"'`*-") if lines else ""
        return [(line, 0)] if line else []
    said = name_words(draft.replace("_", " "))
    found = []
    for candidate in question.candidates:
        told = name_words(candidate.selection.replace("_", " "))
        if holds(said, told):
            place = next(i for i in range(len(said)) if said[i : i + len(told)] == told)
            found.append((candidate.selection, place))
    # A name that stands inside a longer one that is named is not named itself.
    whole = [name_words(selection.replace("_", " ")) for selection, _ in found]
    return [
        item
        for item, told in zip(found, whole, strict=True)
        if not any(told != other and holds(other, told) for other in whole)
    ]
