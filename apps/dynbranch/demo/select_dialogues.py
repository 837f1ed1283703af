"""Makes the demo's dialogues from a folder of records: ``python -m dynbranch.demo.select_dialogues FOLDER``.

The folder holds ``hci.jsonl.gz`` (the Schema-Guided Dialogue dataset). The choice is deterministic: of the
dialogues that suit, the shortest. They stay in a folder of their own, with the licence that they came with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from dynbranch.demo.select_records import DATA, Record, lines, write_lines

DIALOGUES = 12
TURNS = range(2, 5)
OPTIONS = range(2, 7)
MAX_SITUATION_CHARACTERS = 160

LABELS = {
    "AFFIRM": "Yes",
    "NEGATE": "No",
    "AFFIRM_INTENT": "Yes, do it",
    "NEGATE_INTENT": "No, not now",
    "SELECT": "Take it",
    "REQUEST_ALTS": "Show another",
}


def label(act: str) -> str:
    """What a button says for an act of the dataset: ``REQUEST:price`` asks for the price."""
    kind, _, about = act.partition(":")
    if kind == "REQUEST":
        return f"Tell me the {about.replace('_', ' ')}"
    return about or LABELS.get(act, act.replace("_", " ").capitalize())


def choose_dialogues(records: Iterable[Record]) -> list[Record]:
    """The dialogues with the shortest situations, in the order of the file."""
    records = list(records)
    menus = {r["key"]: r["opts"] for r in records if r["k"] == "menu"}
    suited: list[tuple[int, int, Record]] = []
    for number, record in enumerate(records):
        turns = [turn for b in record.get("br", ()) if (turn := _turn(b, menus)) is not None]
        if record["k"] == "d" and len(turns) in TURNS and len(turns) == len(record["br"]):
            made = {"id": record["id"], "turns": turns}
            suited.append((max(len(turn["situation"]) for turn in turns), number, made))
    chosen = sorted(suited, key=lambda item: item[:2])[:DIALOGUES]
    return [made for _, _, made in sorted(chosen, key=lambda item: item[1])]


def _turn(branch: Record, menus: dict[str, list[str]]) -> Record | None:
    """One offer and the pick that followed it; None where the pick was not one of a menu."""
    service = str(branch["sv"]).partition("_")[0]
    acts = menus.get(f"{service}|{branch['ctx']}", [])
    labels = [label(act) for act in acts]
    suits = (
        branch["pick"] in acts
        and len(set(labels)) == len(labels)
        and len(labels) in OPTIONS
        and 0 < len(branch["s"]) <= MAX_SITUATION_CHARACTERS
    )
    if not suits:
        return None
    return {
        "service": service,
        "kind": branch["kind"],
        "situation": branch["s"],
        "options": labels,
        "pick": label(branch["pick"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's dialogues from a folder of records.")
    parser.add_argument("folder", type=Path, help="holds hci.jsonl.gz")
    parser.add_argument("--into", type=Path, default=DATA / "sgd")
    arguments = parser.parse_args()
    dialogues = choose_dialogues(lines(arguments.folder / "hci.jsonl.gz"))
    write_lines(arguments.into / "dialogues.jsonl", dialogues)
    print(f"{len(dialogues)} dialogues, {sum(len(d['turns']) for d in dialogues)} turns")


if __name__ == "__main__":
    main()
