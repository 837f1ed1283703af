"""Dialogues are chosen by rule: turns whose pick was one of a short menu, the shortest first."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from dynbranch.demo import select_dialogues
from dynbranch.demo.records import dialogues
from dynbranch.demo.select_dialogues import choose_dialogues, label

MENU = {"k": "menu", "key": "Music|CONFIRM", "opts": ["AFFIRM", "NEGATE"]}


def turn(**other: Any) -> dict[str, Any]:
    return {"kind": "CONFIRM", "sv": "Music_2", "ctx": "CONFIRM", "pick": "AFFIRM", "s": "Play it?", **other}


def dialogue(id: str, *turns: dict[str, Any]) -> dict[str, Any]:
    return {"k": "d", "id": id, "br": list(turns)}


def test_a_button_says_what_an_act_means() -> None:
    acts = ["AFFIRM", "REQUEST:phone_number", "INTENT:BuyBusTicket", "REQUEST_ALTS", "THANK_YOU"]
    assert [label(act) for act in acts] == [
        "Yes",
        "Tell me the phone number",
        "BuyBusTicket",
        "Show another",
        "Thank you",
    ]


@pytest.mark.parametrize(
    "odd",
    [
        turn(pick="SELECT"),
        turn(ctx="OFFER"),
        turn(s="x" * 200),
        turn(s=""),
    ],
)
def test_a_dialogue_with_a_turn_that_does_not_suit_is_left_out(odd: dict[str, Any]) -> None:
    records = [MENU, dialogue("good", turn(), turn()), dialogue("odd", turn(), turn(), odd)]
    assert [chosen["id"] for chosen in choose_dialogues(records)] == ["good"]


def test_short_ones_come_first_and_keep_their_order() -> None:
    long = dialogue("long", turn(s="y" * 100), turn())
    short = [dialogue(str(n), turn(), turn(s="z" * n)) for n in range(20, 8, -1)]
    assert [chosen["id"] for chosen in choose_dialogues([MENU, long, *short])] == [d["id"] for d in short]


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gzip.open(tmp_path / "hci.jsonl.gz", "wt") as file:
        for record in (MENU, dialogue("one", turn(), turn(pick="NEGATE"))):
            file.write(json.dumps(record) + "\n")
    (tmp_path / "sgd").mkdir()
    monkeypatch.setattr("sys.argv", ["select", str(tmp_path), "--into", str(tmp_path / "sgd")])
    select_dialogues.main()
    (read,) = dialogues(tmp_path)
    assert [t.pick for t in read.turns] == ["Yes", "No"]
    assert read.turns[0].options == ("Yes", "No")
