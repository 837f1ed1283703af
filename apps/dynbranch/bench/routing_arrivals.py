"""Arrivals whose prompts begin alike: families of instructions, and conversations that grow turn by turn.

Pure: one seed makes one run's arrivals. Every conversation belongs to a family (a product's tools and
instructions; Zipf: few are asked for often), opens with a question of its own, and comes back with all that
was said before. The answers in it are written down beforehand, so that arrivals do not depend on who serves.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

_LETTERS = "etaoin shrdlu cmfwyp vbgkj "


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes are in bytes of text, from and to. ``return_share``: of the arrivals that find a conversation
    whose answer came ``pause_s`` ago."""

    requests: int = 300
    per_s: float = 12.0
    families: int = 60
    zipf: float = 1.1
    instructions_bytes: tuple[int, int] = (1_000, 6_000)
    question_bytes: tuple[int, int] = (200, 4_000)
    answer_bytes: tuple[int, int] = (100, 600)
    answer_tokens: tuple[int, int] = (8, 24)
    turns: tuple[int, int] = (1, 10)
    return_share: float = 0.7
    pause_s: float = 2.0

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ArrivalAt:
    """``at_s`` from the start of the run."""

    number: int
    at_s: float
    body: bytes


@dataclass(slots=True)
class _Conversation:
    messages: list[dict[str, str]]
    turns_left: int
    back_from_s: float = 0.0


@dataclass(slots=True)
class _Writer:
    workload: Workload
    model: str
    letters: str
    chance: random.Random
    instructions: list[str] = field(default_factory=list)
    popularity: list[float] = field(default_factory=list)
    open: list[_Conversation] = field(default_factory=list)

    def __post_init__(self) -> None:
        for family in range(self.workload.families):
            self.instructions.append(f"{family}: {self.text(self.workload.instructions_bytes)}")
            self.popularity.append((family + 1) ** -self.workload.zipf)

    def text(self, size_bytes: tuple[int, int]) -> str:
        return "".join(self.chance.choices(self.letters, k=self.chance.randint(*size_bytes)))

    def arrivals(self) -> Iterator[ArrivalAt]:
        at_s = 0.0
        for number in range(self.workload.requests):
            at_s += self.chance.expovariate(self.workload.per_s)
            yield ArrivalAt(number, at_s, self.turn(at_s))

    def turn(self, at_s: float) -> bytes:
        conversation = self.conversation(at_s)
        conversation.messages.append(_message("user", self.text(self.workload.question_bytes)))
        body = {
            "model": self.model,
            "temperature": 1,
            "max_tokens": self.chance.randint(*self.workload.answer_tokens),
            "messages": conversation.messages,
        }
        sent = json.dumps(body).encode()
        conversation.messages.append(_message("assistant", self.text(self.workload.answer_bytes)))
        conversation.turns_left -= 1
        conversation.back_from_s = at_s + self.workload.pause_s
        if not conversation.turns_left:
            self.open.remove(conversation)
        return sent

    def conversation(self, at_s: float) -> _Conversation:
        back = [one for one in self.open if one.back_from_s <= at_s]
        if back and self.chance.random() < self.workload.return_share:
            return self.chance.choice(back)
        (instructions,) = self.chance.choices(self.instructions, self.popularity)
        new = _Conversation([_message("system", instructions)], self.chance.randint(*self.workload.turns))
        self.open.append(new)
        return new


def arrivals(workload: Workload, *, model: str, seed: int, dialect: int = 0) -> list[ArrivalAt]:
    """Two seeds share no text, nor do two dialects of one seed: the same arrivals in other letters."""
    letters = _LETTERS[dialect:] + _LETTERS[:dialect]
    return list(_Writer(workload, model, letters, random.Random(seed)).arrivals())


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
