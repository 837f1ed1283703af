"""How an explanation looks to a person."""

from __future__ import annotations

from io import StringIO
from typing import Any

from dynbranch.cli.store_commands import explanation_tables
from rich.console import Console

ANSWER: dict[str, Any] = {
    "name": "aa",
    "outcome": "miss",
    "why": "Nothing is stored under this name.",
    "fields": [{"path": "odd", "class": "determines", "known": False}],
}
NEAREST: dict[str, Any] = {
    "name": "bb",
    "workflow": "w[1]",
    "same_workflow": False,
    "differences": [
        {
            "path": "messages[1].content",
            "kind": "changed",
            "here": "a text of 7 characters",
            "there": "a text of 8 characters",
            "from_character": 6,
        },
        {"path": "seed", "kind": "only_there", "here": None, "there": "3", "from_character": None},
    ],
    "more": 4,
}


def shown(answer: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=160)
    for table in explanation_tables(answer):
        console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_nearest_stored_request_and_what_differs() -> None:
    page = shown({**ANSWER, "nearest": NEAREST})
    for said in (
        "of workflow w[1]: bb",
        "messages[1].content",
        "a text of 7 characters, other from character 6",
        "seed",
        "and 4 more",
    ):
        assert said in page


def test_the_same_workflow_is_said() -> None:
    assert "of the same workflow: bb" in shown({**ANSWER, "nearest": {**NEAREST, "same_workflow": True}})


def test_without_one_nothing_is_said_of_it() -> None:
    assert "most like it" not in shown(ANSWER)
    assert "odd" in shown({**ANSWER, "nearest": None})
