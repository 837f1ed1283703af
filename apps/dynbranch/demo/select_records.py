"""Makes the demo's data from a folder of records: ``python -m dynbranch.demo.select_records FOLDER``.

The folder holds ``routing.jsonl.gz`` (the Berkeley Function-Calling Leaderboard) and ``react.jsonl.gz``
(questions and passages of MuSiQue and others). The choice is deterministic: of the records that suit, the
shortest, since they are for a small model on a CPU. Of the second file only MuSiQue's questions and passages
are taken.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

CATEGORIES = (("parallel_multiple", 8), ("multiple", 2), ("live_multiple", 2))
MAX_USER_CHARACTERS = 320
MAX_PROPERTIES = 5
QUESTIONS = 12
MAX_PASSAGE_TOKENS = 200

TYPES = {"dict": "object", "float": "number", "tuple": "array"}
SCALARS = frozenset({"string", "integer", "number", "boolean"})

Record = dict[str, Any]


def lines(path: Path) -> Iterator[Record]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def function_name(name: str) -> str:
    """BFCL writes ``module.function``; a function name of the Chat Completions protocol has no dots."""
    return name.replace(".", "_")


def json_schema(schema: Record) -> Record:
    """BFCL's schemas are nearly JSON Schema; ``dict``, ``float`` and ``tuple`` are the exceptions."""
    turned = {key: value for key, value in schema.items() if key != "optional"}
    kind = schema.get("type")
    if isinstance(kind, str):
        turned["type"] = TYPES.get(kind, kind)
    if isinstance(properties := schema.get("properties"), dict):
        turned["properties"] = {name: json_schema(value) for name, value in properties.items()}
    if isinstance(items := schema.get("items"), dict):
        turned["items"] = json_schema(items)
    return turned


def _plain_property(schema: Record) -> bool:
    """A scalar, or a list of scalars."""
    if schema.get("type") == "array":
        return schema.get("items", {}).get("type") in SCALARS
    return schema.get("type") in SCALARS


def _plain_function(function: Record) -> bool:
    parameters = function["parameters"]
    properties = parameters.get("properties", {})
    return 1 <= len(properties) <= MAX_PROPERTIES and all(_plain_property(p) for p in properties.values())


def routing_record(record: Record) -> Record | None:
    """The demo's form of a record, or None where it does not suit."""
    functions = [
        {
            "name": function_name(f["name"]),
            "description": f.get("description", ""),
            "parameters": json_schema(f["parameters"]),
        }
        for f in record["fns"]
    ]
    names = {f["name"] for f in functions}
    handlers = [function_name(step["h"]) for step in record["steps"]]
    suits = (
        2 <= len(functions) <= 4
        and len(names) == len(functions)
        and all(h in names for h in handlers)
        and len(record["user"]) <= MAX_USER_CHARACTERS
        and "sys" not in record
        and all(_plain_function(f) for f in functions)
    )
    if not suits:
        return None
    return {
        "id": record["id"],
        "category": record["cat"],
        "user": record["user"],
        "functions": functions,
        "expected": [
            {"handler": h, "arguments": step["a"]} for h, step in zip(handlers, record["steps"], strict=True)
        ],
    }


def choose_routing(records: Iterable[Record]) -> list[Record]:
    """Of each category the records with the shortest functions, in the order of the file."""
    suited: dict[str, list[tuple[int, int, Record]]] = {category: [] for category, _ in CATEGORIES}
    for number, record in enumerate(records):
        category = record.get("cat")
        if record["k"] == "req" and category in suited and (made := routing_record(record)) is not None:
            suited[category].append((record["tok"]["fns"], number, made))
    return [made for category, count in CATEGORIES for made in _shortest(suited[category], count)]


def choose_questions(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """The questions with the shortest pools, and every passage of their pools, each once, by id."""
    passages = {r["p"]: r for r in records if r["k"] == "p"}
    suited: list[tuple[int, int, Record]] = []
    for number, record in enumerate(records):
        if record["k"] != "q" or record["src"] != "musique" or not passages.keys() >= set(record["pool"]):
            continue
        made = {
            "id": record["id"],
            "question": record["q"],
            "answer": record["a"],
            "gold": [hop["p"] for hop in record["hops"]],
            "pool": sorted(record["pool"]),
        }
        tokens = [passages[p]["tok"] for p in made["pool"]]
        if set(made["gold"]) <= set(made["pool"]) and max(tokens) <= MAX_PASSAGE_TOKENS:
            suited.append((sum(tokens), number, made))
    questions = _shortest(suited, QUESTIONS)
    wanted = sorted({p for q in questions for p in q["pool"]})
    return questions, [{"id": p, "title": passages[p]["t"], "text": passages[p]["x"]} for p in wanted]


def _shortest(suited: list[tuple[int, int, Record]], count: int) -> list[Record]:
    """By tokens, then by place; in the order of their places."""
    chosen = sorted(suited, key=lambda item: item[:2])[:count]
    return [made for _, _, made in sorted(chosen, key=lambda item: item[1])]


def write_lines(path: Path, records: list[Record]) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's data from a folder of records.")
    parser.add_argument("folder", type=Path, help="holds routing.jsonl.gz and react.jsonl.gz")
    parser.add_argument("--into", type=Path, default=DATA)
    arguments = parser.parse_args()
    routing = choose_routing(lines(arguments.folder / "routing.jsonl.gz"))
    questions, passages = choose_questions(list(lines(arguments.folder / "react.jsonl.gz")))
    write_lines(arguments.into / "routing.jsonl", routing)
    write_lines(arguments.into / "questions.jsonl", questions)
    write_lines(arguments.into / "passages.jsonl", passages)
    print(f"{len(routing)} routing requests, {len(questions)} questions, {len(passages)} passages")


if __name__ == "__main__":
    main()
