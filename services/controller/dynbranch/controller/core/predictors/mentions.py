"""Candidates in the order in which the user's words speak of them."""

from __future__ import annotations

import math
from collections import Counter

from dynbranch.controller.core.predictors.port import Candidate, Question, Resolution, TextKind
from dynbranch.domain.ids import Instant
from dynbranch.wording.words import stems, words

NAME_WEIGHT = 3.0
ABOUT_WEIGHT = 1.0
"""A word of the candidate's own name tells more than one of its description."""


class Mentions:
    """For a router that hands parts of one request to handlers: people ask in the order in which they want.

    Where a candidate is spoken of is the mean place of the words it shares with the request, weighted by how
    few other candidates have them. First comes what was not picked yet, then what was picked just now: a
    handler that is called again is mostly called at once.
    """

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        if not question.candidates:
            return ()
        asked = " ".join(text.body for text in question.of_kind(TextKind.ASKED))
        places = _places(question.candidates, asked)
        spoken = sorted(places, key=lambda name: places[name])
        new = [name for name in spoken if name not in question.picked]
        used = sorted(
            (name for name in spoken if name in question.picked),
            key=lambda name: name != question.picked[-1],
        )
        return (*new[:1], *used[:1], *new[1:], *used[1:])[: question.at_most]

    def learn(self, resolution: Resolution, now: Instant) -> None:
        """It has nothing to learn: the request says everything."""


def _places(candidates: tuple[Candidate, ...], asked: str) -> dict[str, float]:
    """Where in the request each is spoken of, in characters; infinite where it is not."""
    known = {candidate.selection: _weights(candidate) for candidate in candidates}
    having = Counter(word for weights in known.values() for word in weights)
    spoken = words(asked)
    places: dict[str, float] = {}
    for name, weights in known.items():
        told = [
            (weights[word.stem] * math.log((len(known) + 0.5) / having[word.stem]), word.at)
            for word in spoken
            if word.stem in weights and (having[word.stem] < len(known) or len(known) == 1)
        ]
        total = sum(weight for weight, _ in told)
        places[name] = sum(weight * at for weight, at in told) / total if told else math.inf
    return places


def _weights(candidate: Candidate) -> dict[str, float]:
    weights = dict.fromkeys(stems(candidate.about), ABOUT_WEIGHT)
    return weights | dict.fromkeys(stems(candidate.selection), NAME_WEIGHT)
