"""The shipped records are what they say they are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from dynbranch.demo import select_records
from dynbranch.demo.records import DATA, passages, questions, routing_requests

JSON_SCHEMA_TYPES = {"object", "array", "string", "integer", "number", "boolean"}


def types_in(schema: dict[str, Any]) -> set[str]:
    found = {schema["type"]}
    for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        found |= types_in(inner)
    return found


def test_there_are_enough_requests_and_questions() -> None:
    assert len({r.id for r in routing_requests()}) >= 12
    assert len({q.id for q in questions()}) >= 12


def test_every_routing_request_offers_a_choice_that_an_engine_can_constrain() -> None:
    for request in routing_requests():
        names = [f.name for f in request.functions]
        assert 2 <= len(set(names)) == len(names) <= 4
        assert request.expected_handlers
        assert set(request.expected_handlers) <= set(names)
        for function in request.functions:
            assert "." not in function.name
            assert function.parameters["type"] == "object"
            assert types_in(function.parameters) <= JSON_SCHEMA_TYPES


def test_every_passage_of_every_pool_ships_once() -> None:
    ids = [p.id for p in passages()]
    assert len(set(ids)) == len(ids)
    assert {p for q in questions() for p in q.pool} == set(ids)
    for question in questions():
        assert set(question.gold) <= set(question.pool)
        assert question.answer


def test_source_and_licence_of_every_file_are_named() -> None:
    notice = (DATA / "NOTICE.md").read_text()
    for file in DATA.glob("*.jsonl"):
        assert file.name in notice
    assert "Apache License 2.0" in notice
    assert "Creative Commons Attribution 4.0" in notice


def test_bfcl_schemas_become_json_schema() -> None:
    schema = {
        "type": "dict",
        "optional": True,
        "properties": {"optional": {"type": "float"}, "b": {"type": "tuple", "items": {"type": "float"}}},
    }
    assert select_records.json_schema(schema) == {
        "type": "object",
        "properties": {"optional": {"type": "number"}, "b": {"type": "array", "items": {"type": "number"}}},
    }


def test_the_selection_takes_musique_only_and_is_deterministic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = {"p": "p1"}
    question = {
        "k": "q",
        "src": "musique",
        "id": "m",
        "q": "?",
        "a": "!",
        "hops": [hop],
        "pool": ["p2", "p1"],
    }
    react = [
        {**question, "src": "hotpot", "id": "h"},
        question,
        {"k": "p", "p": "p1", "t": "One", "x": "one", "tok": 3},
        {"k": "p", "p": "p2", "t": "Two", "x": "two", "tok": 3},
        {"k": "p", "p": "p3", "t": "Three", "x": "three", "tok": 3},
    ]
    _write(tmp_path / "react.jsonl.gz", react)
    _write(tmp_path / "routing.jsonl.gz", [{"k": "mt"}])
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("sys.argv", ["select", str(tmp_path), "--into", str(tmp_path / name)])
        select_records.main()
        made.append([(tmp_path / name / f).read_bytes() for f in ("questions.jsonl", "passages.jsonl")])
    assert made[0] == made[1]
    assert [q.id for q in questions(tmp_path / "first")] == ["m"]
    assert [p.id for p in passages(tmp_path / "first")] == ["p1", "p2"]


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
