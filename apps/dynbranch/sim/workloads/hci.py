"""HCI: menus of the Schema-Guided Dialogue set. An assistant offers, a person thinks and picks, what was
picked is done, and told. Of the offering turn the time does not count, and what is told can not run ahead."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

from dynbranch.controller.core.predictors.offer import Offer
from dynbranch.controller.core.predictors.port import Resolution
from dynbranch.domain.ids import Instant
from dynbranch.records.decisions import Decision, dialogues
from dynbranch.sim.fleet.workflows import Call, Step, Turn
from dynbranch.sim.workloads import shapes
from dynbranch.sim.workloads.stories import Calls, Deck, Lending, Making, Story, decided

_NOW = Instant(0.0)


class HciWriter:
    def __init__(self, making: Making) -> None:
        self.making, numbers = making, making.numbers
        self._predictor = Offer()
        self._next: deque[Decision] = deque()
        self.template = shapes.hci(making.branching_of("hci"))
        found = [record for record in making.records.dialogues if record["br"]]
        self._deck = Deck(found, f"hci {making.seed}")
        self._width = making.width or numbers.of("hci", "width")
        self._spent_s = numbers["hci.spent_s"]
        self._gap_s = numbers["hci.gap_s"] if making.gap_s is None else making.gap_s
        self._gap_spread = numbers["hci.gap_spread"]
        self._lending = Lending(making.shared, Random(f"lent {making.seed}"))
        # What is picked goes on with the conversation: it has no instructions of its own.
        self._calls = Calls(making, "hci", (shapes.OFFER, shapes.TELL, shapes.ACT))

    def write(self, number: int, lent: Story | None = None) -> Story:
        if not self._next:
            _, record = self._deck.draw()
            self._next.extend(dialogues(replace(self.making.records, dialogues=(record,))))
        menu = self._next.popleft()
        picked = menu.selection
        ranked = self._predictor.propose(menu.question, _NOW)[: self._width]
        self._predictor.learn(Resolution(menu.question, (picked,)), _NOW)
        offer = self._offer(number)
        chains = {name: (self._act(number, name, offer),) for name in dict.fromkeys((*ranked, picked))}
        borrowed = self._lending.parts(lent, 1)
        if borrowed:
            (act,) = borrowed[0]
            chains[picked] = (act,)
        (act,) = chains[picked]
        decision = decided(shapes.PICK, picked, ranked, chains, self._spent_s)
        tell = self._calls.call(shapes.TELL, f"tell {self.making.own(number)}", read=act.output_tokens)
        offering = Turn((Step(offer, decision),), measured=False)
        doing = Turn((Step(act), Step(tell)), gap_s=self._thinks(number))
        return Story((offering, doing), ((act,),))

    def again(self, number: int, story: Story) -> Story:
        offering, doing = story.turns
        return Story((offering, replace(doing, gap_s=self._thinks(number))), story.parts)

    def _thinks(self, number: int) -> float:
        return self.making.lengths.seconds(self._gap_s, self._gap_spread, str(number))

    def _offer(self, number: int) -> Call:
        content = f"offer {self.making.own(number)}"
        prompt_tokens = self._calls.first_prompt(shapes.OFFER, content)
        return self._calls.turn(shapes.OFFER, content, number, prompt_tokens)

    def _act(self, number: int, name: str, offer: Call) -> Call:
        """The conversation goes on with what was picked; its end is shared with nobody."""
        content = f"act {self.making.own(number)} {name}"
        prompt_tokens = offer.prompt_tokens + offer.output_tokens
        prompt_tokens += self.making.lengths.prompt(self._calls.tokens[shapes.ACT].prompt, content)
        return Call(shapes.ACT, content, prompt_tokens, self._calls.output(shapes.ACT, content), offer.blocks)
