"""Passages with versions in SQLite: lexical search, reads by id, and writes that remember to be reported.

A write and the note that it is to be reported are one transaction, so that no crash can lose the report.
Everything here blocks for a moment and belongs to one thread.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dynbranch.demo.records import Passage

_SCHEMA = """
CREATE TABLE IF NOT EXISTS passages (
  id TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL, version INTEGER NOT NULL
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(id UNINDEXED, title, text);
CREATE TABLE IF NOT EXISTS reports (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL);
"""

_SCORE_DIGITS = 6
MAX_QUERY_WORDS = 64


@dataclass(frozen=True, slots=True)
class Versioned:
    """A passage as it is now; ``version`` counts its writes from 1."""

    passage: Passage
    version: int


@dataclass(frozen=True, slots=True)
class Found:
    """A search result. ``score`` is BM25's, larger is better."""

    id: str
    title: str
    score: float


@dataclass(frozen=True, slots=True)
class Report:
    """A write that the gateway has not confirmed yet. Numbers rise in the order of the writes."""

    number: int
    id: str


class PassageStore:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        # Durable before acknowledged: every commit reaches the disk.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    def load(self, passages: Iterable[Passage]) -> None:
        """Fill an empty store; one that holds passages is left as it is."""
        if self._db.execute("SELECT 1 FROM passages LIMIT 1").fetchone():
            return
        with self._transaction():
            for passage in passages:
                self._insert(passage, version=1)

    def search(self, query: str, k: int) -> list[Found]:
        """The ``k`` best passages for any of the query's words. Equal scores are ordered by id."""
        words = list(dict.fromkeys(re.findall(r"\w+", query.lower())))[:MAX_QUERY_WORDS]
        if not words:
            return []
        rows = self._db.execute(
            "SELECT id, title, -bm25(words) AS score FROM words WHERE words MATCH ?"
            " ORDER BY score DESC, id LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), k),
        )
        return [Found(id, title, round(score, _SCORE_DIGITS)) for id, title, score in rows]

    def get(self, id: str) -> Versioned | None:
        row = self._db.execute("SELECT title, text, version FROM passages WHERE id = ?", (id,)).fetchone()
        return Versioned(Passage(id, row[0], row[1]), row[2]) if row else None

    def put(self, id: str, *, text: str, title: str | None) -> Versioned:
        """Write durably and note the report. Without a title an existing passage keeps its own."""
        with self._transaction():
            before = self.get(id)
            if title is None:
                title = before.passage.title if before else ""
            passage = Passage(id, title, text)
            version = before.version + 1 if before else 1
            self._db.execute("DELETE FROM passages WHERE id = ?", (id,))
            self._db.execute("DELETE FROM words WHERE id = ?", (id,))
            self._insert(passage, version=version)
            self._db.execute("INSERT INTO reports (id) VALUES (?)", (id,))
        return Versioned(passage, version)

    def unreported(self, limit: int) -> list[Report]:
        """The oldest writes that are still to be reported."""
        rows = self._db.execute("SELECT number, id FROM reports ORDER BY number LIMIT ?", (limit,))
        return [Report(number, id) for number, id in rows]

    def reported(self, up_to: int) -> None:
        self._db.execute("DELETE FROM reports WHERE number <= ?", (up_to,))

    def _insert(self, passage: Passage, *, version: int) -> None:
        self._db.execute(
            "INSERT INTO passages VALUES (?, ?, ?, ?)", (passage.id, passage.title, passage.text, version)
        )
        self._db.execute("INSERT INTO words VALUES (?, ?, ?)", (passage.id, passage.title, passage.text))

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK after an error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")
