"""Names in what was just read, ranked by how well they answer what the workflow is after."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dynbranch.controller.core.predictors.cues import PEOPLE, PLACES, told_by
from dynbranch.controller.core.predictors.port import Question, Resolution, Text, TextKind
from dynbranch.domain.ids import Instant
from dynbranch.wording.spans import CALENDAR, Span, spans
from dynbranch.wording.words import holds, name_words, stem, words

NEAR_CHARACTERS = 40
AROUND_CHARACTERS = 100
MOST_ENTITIES = 48
PRIOR = {
    "asked": -0.1,
    "asked_whole": -0.4,
    "aim": -1.1,
    "title": -1.0,
    "title_is_answer": 0.1,
    "seen": -1.5,
    "place": -0.5,
    "order": -0.1,
    "one_word": -0.2,
    "two_words": 0.6,
    "three_words": 0.9,
    "many_words": -0.2,
    "often": 0.8,
    "inside_another": 0.2,
    "holds_another": 0.4,
    "calendar": -1.4,
    "number": -1.2,
    "near_asked": 1.6,
    "around_asked": 1.9,
    "sentence_asked": 0.9,
    "near_aim": -0.2,
    "around_aim": 0.3,
    "sentence_aim": 0.3,
    "after_by": 0.8,
    "after_in": -0.3,
    "after_of": 1.2,
    "after_the": -0.8,
    "after_is": -0.3,
    "after_comma": 0.0,
    "place_after_in": 1.5,
    "place_after_comma": 0.9,
    "place_of_one_word": 0.4,
    "person_after_by": -0.3,
    "person_of_two_words": 0.0,
    "person_after_in": -0.8,
    "kind_asked": -0.1,
    "kind_last": 0.3,
}
"""What is seen of a name, each between 0 and 1 or about that, and what it weighs before anything is learned.

Fitted on two fifths of the questions of MuSiQue and HotpotQA by ``python -m
dynbranch.bench.predictor_weights``; ``bench predictors`` reports the others apart."""

FEATURES = tuple(PRIOR)

STEP = 0.05
"""How far one resolution moves the weights. Small: a coordinate sees hundreds."""


class Entities:
    """A conditional logit over the names in the last text read, whose weights follow what was selected.

    It reads the workflow's question and the last step that it wrote, and asks of every name how near it
    stands to their words, what comes before it, and whether it is known already. One set of weights for all
    coordinates: what makes a name the next one to look up is the same everywhere, about.
    """

    def __init__(self, weights: Sequence[float] | None = None, *, step: float = STEP) -> None:
        self._weights = list(weights or PRIOR.values())
        self._step = step

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        entities = found(question)
        scores = [self._score(entity) for entity in entities]
        order = sorted(range(len(entities)), key=lambda place: -scores[place])
        return tuple(entities[place].name for place in order[: question.at_most])

    def learn(self, resolution: Resolution, now: Instant) -> None:
        """One step up the likelihood that a name of what was selected is on top."""
        entities = found(resolution.question)
        right = [any(same_name(entity.name, s) for s in resolution.selections) for entity in entities]
        if not any(right) or all(right):
            return
        scores = [self._score(entity) for entity in entities]
        best = max(scores)
        odds = [math.exp(score - best) for score in scores]
        total, total_right = sum(odds), sum(o for o, is_right in zip(odds, right, strict=True) if is_right)
        for odd, is_right, entity in zip(odds, right, entities, strict=True):
            pull = self._step * ((odd / total_right if is_right else 0.0) - odd / total)
            for place, value in enumerate(entity.features):
                self._weights[place] += pull * value

    @property
    def weights(self) -> dict[str, float]:
        return dict(zip(FEATURES, self._weights, strict=True))

    def _score(self, entity: Entity) -> float:
        return sum(w * x for w, x in zip(self._weights, entity.features, strict=True))


def same_name(one: str, other: str) -> bool:
    """Whether two names mean one thing, as far as words tell: one holds the other, and is at most twice as
    long."""
    a, b = name_words(one), name_words(other)
    short, long = (a, b) if len(a) <= len(b) else (b, a)
    return 2 * len(short) >= len(long) and holds(long, short)


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    features: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Aims:
    """The words of what the workflow is after: of all of it, and of its last step."""

    asked_words: frozenset[str]
    asked: frozenset[str]
    step_words: frozenset[str]
    step: frozenset[str]
    person: bool
    place: bool


def found(question: Question) -> list[Entity]:
    """The names in the last text read, each once, in the order of the text. With a closed set of candidates,
    those of them that stand there."""
    read = question.of_kind(TextKind.READ)
    if not read:
        return []
    text = read[-1]
    occurring = _occurring(question, text)
    scene = _Scene(text, _aims(question), tuple(occurring))
    known = [name_words(name) for name in question.picked]
    return [
        Entity(name, scene.features(name, at, order, known))
        for order, (name, at) in enumerate(list(occurring.items())[:MOST_ENTITIES])
    ]


def _occurring(question: Question, text: Text) -> dict[str, list[int]]:
    if question.candidates is not None:
        names = [candidate.selection for candidate in question.candidates]
        return {
            name: [m.start() for m in re.finditer(re.escape(name), text.body)] or [len(text.body)]
            for name in names
        }
    by_words: dict[tuple[str, ...], list[Span]] = {}
    for span in spans(text.body):
        key = name_words(span.name)
        if key:
            by_words.setdefault(key, []).append(span)
    return {same[0].name: [span.at for span in same] for same in by_words.values()}


def _aims(question: Question) -> _Aims:
    asked = " ".join(text.body for text in question.of_kind(TextKind.ASKED))
    steps = question.of_kind(TextKind.STEP)
    step = steps[-1].body if steps else ""
    step_stems = frozenset(word.stem for word in words(step))
    spelled = frozenset(name_words(step or asked))
    return _Aims(
        asked_words=frozenset(name_words(asked)),
        asked=frozenset(word.stem for word in words(asked)),
        step_words=frozenset(name_words(step)),
        step=step_stems | told_by(step_stems),
        person=bool(spelled & PEOPLE),
        place=bool(spelled & PLACES),
    )


class _Scene:
    """The text around the names."""

    def __init__(self, text: Text, aims: _Aims, names: tuple[str, ...]) -> None:
        self._text = text.body
        self._title = frozenset(name_words(text.title))
        self._aims = aims
        self._words = words(text.body)
        self._at = [word.at for word in self._words]
        self._names = [name_words(name) for name in names]
        self._sentences = [m.start() for m in re.finditer(r"(?:^|(?<=[.!?] ))", text.body)]

    def features(
        self, name: str, at: list[int], order: int, known: list[tuple[str, ...]]
    ) -> tuple[float, ...]:
        aims = self._aims
        told = name_words(name)
        in_asked = sum(word in aims.asked_words for word in told) / len(told)
        in_step = sum(word in aims.step_words for word in told) / len(told)
        before = self._before(at[0])
        by, inside, comma = before == "by", before in ("in", "at", "near", "from", "to"), before == ","
        size = len(told)
        titled = len(self._title & set(told)) / len(self._title | set(told)) if self._title else 0.0
        kinds = [stem(word) in aims.asked | aims.step for word in told]
        values = (
            in_asked,
            in_asked == 1,
            in_step,
            titled if in_step or not aims.step_words else 0.0,
            titled if not in_step and aims.step_words else 0.0,
            any(holds(told, k) or holds(k, told) for k in known),
            at[0] / max(1, len(self._text)),
            1 / (1 + order),
            size == 1,
            size == 2,
            size == 3,
            size > 4,
            math.log(len(at)),
            any(told != other and holds(other, told) for other in self._names),
            any(told != other and holds(told, other) for other in self._names),
            any(word in CALENDAR for word in told),
            any(word[0].isdigit() for word in told),
            *self._closeness(name, at, aims.asked),
            *self._closeness(name, at, aims.step),
            by,
            inside,
            before == "of",
            before == "the",
            before in ("is", "was"),
            comma,
            aims.place and inside,
            aims.place and comma,
            aims.place and size == 1,
            aims.person and by,
            aims.person and size == 2,
            aims.person and inside,
            any(kinds) and in_asked < 1,
            kinds[-1] and in_asked < 1,
        )
        return tuple(float(value) for value in values)

    def _closeness(self, name: str, at: list[int], wanted: frozenset[str]) -> tuple[float, float, float]:
        """The share of the wanted words that stand near, around, and in the sentence of any occurrence."""
        if not wanted:
            return 0.0, 0.0, 0.0
        return (
            max(self._share(a - NEAR_CHARACTERS, a + len(name) + NEAR_CHARACTERS, wanted) for a in at),
            max(self._share(a - AROUND_CHARACTERS, a + len(name) + AROUND_CHARACTERS, wanted) for a in at),
            max(self._share(*self._sentence(a), wanted) for a in at),
        )

    def _share(self, begin: int, end: int, wanted: frozenset[str]) -> float:
        low, high = bisect.bisect_left(self._at, begin), bisect.bisect_left(self._at, end)
        return len(wanted.intersection(word.stem for word in self._words[low:high])) / len(wanted)

    def _sentence(self, at: int) -> tuple[int, int]:
        place = bisect.bisect_right(self._sentences, at)
        begin = self._sentences[place - 1] if place else 0
        return begin, self._sentences[place] if place < len(self._sentences) else len(self._text)

    def _before(self, at: int) -> str:
        """The word, or the comma, before a name."""
        left = self._text[max(0, at - 30) : at].rstrip()
        if left.endswith(","):
            return ","
        match = re.search(r"[^\W_]+$", left)
        return match.group().lower() if match else ""
