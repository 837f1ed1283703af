"""Records of what really happened: decisions that fell, runs of agents, arrivals at services. Read from the
package's own data or from a folder of more.

``python -m dynbranch.records.loading FOLDER`` makes the package's data: of each record what benchmarks and
the simulator read. Records with a share-alike licence get a folder of their own.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIPPED = (Path(__file__).parent / "data", Path(__file__).parent / "data_share_alike")
SUBAGENT_QUESTIONS = 400
COMMAND_RUNS = 60
ARRIVALS = 1000
"""Of each trace."""
FILES = ("routing", "react", "subagent", "hci", "commands", "arrivals")
TUNED_SHARE = 0.4

Record = dict[str, Any]


def tuned(key: str) -> bool:
    """Whether a record is of the part that parameters were chosen on. The figures are over the others."""
    number = int(hashlib.sha256(f"tune{key}".encode()).hexdigest()[:8], 16)
    return number / 2**32 < TUNED_SHARE


@dataclass(frozen=True, slots=True)
class Records:
    """``where`` says which data these are, for the result."""

    where: str
    routing: tuple[Record, ...]
    calls: tuple[Record, ...]
    questions: tuple[Record, ...]
    passages: dict[str, Record]
    subagents: tuple[Record, ...]
    dialogues: tuple[Record, ...]
    menus: dict[str, tuple[str, ...]]
    runs: tuple[Record, ...]
    arrivals: tuple[Record, ...] = ()


def load(folder: Path | None = None, files: Collection[str] = FILES) -> Records:
    """Records in the order of their files, of those ``files``. A file that is not there has none."""
    folders = SHIPPED if folder is None else (folder,)

    def of(name: str, kind: str) -> Iterator[Record]:
        for each in folders if name in files else ():
            path = each / f"{name}.jsonl.gz"
            if path.exists():
                yield from (record for record in _lines(path) if kind in ("", record["k"]))

    return Records(
        where="package" if folder is None else "folder",
        routing=tuple(r for r in of("routing", "req") if r["cat"] == "parallel_multiple"),
        calls=tuple(of("routing", "tau")),
        questions=tuple(of("react", "q")),
        passages={r["p"]: r for r in of("react", "p")},
        subagents=tuple(of("subagent", "q")),
        dialogues=tuple(of("hci", "d")),
        menus={r["key"]: tuple(r["opts"]) for r in of("hci", "menu")},
        runs=tuple(_with_known_commands(run) for run in of("commands", "traj")),
        arrivals=tuple(of("arrivals", "")),
    )


def _with_known_commands(run: Record) -> Record:
    """Steps without a command are answers that held none."""
    return run | {"steps": [step for step in run["steps"] if step.get("h")]}


def _lines(path: Path) -> Iterator[Record]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


# Making the package's data


def _write(path: Path, records: Iterable[Record]) -> int:
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records]
    text = "".join(line + "\n" for line in lines)
    # Without a name and a time in it, the same records give the same bytes.
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return len(lines)


def _only(record: Record, *fields: str) -> Record:
    return {field: record[field] for field in fields if field in record}


def _routing(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        if record["k"] == "req" and record["cat"] == "parallel_multiple":
            kept = _only(record, "k", "id", "cat", "user", "fns")
            yield kept | {"steps": [_called(step) for step in record["steps"]]}


def _called(step: Record) -> Record:
    """``d`` tells calls of one function apart by their arguments, of which no more is kept."""
    made = json.dumps(step["a"], sort_keys=True, ensure_ascii=False)
    return {"h": step["h"], "d": hashlib.sha256(made.encode()).hexdigest()[:10]}


def _react(records: list[Record], source: str) -> Iterator[Record]:
    """Questions with their hops, and the passages that the hops read."""
    wanted: set[str] = set()
    for record in records:
        if record["k"] == "q" and record["src"] == source:
            wanted |= {hop["p"] for hop in record["hops"]}
            yield _only(record, "k", "src", "id", "q", "hops")
    for record in records:
        if record["k"] == "p" and record["p"] in wanted:
            yield _only(record, "k", "p", "t", "x")


def _subagent(records: Iterable[Record]) -> Iterator[Record]:
    questions = [record for record in records if record["k"] == "q"]
    for record in questions[:SUBAGENT_QUESTIONS]:
        yield _only(record, "k", "id") | {"subs": [_only(sub, "sub", "ref") for sub in record["subs"]]}


def _hci(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        if record["k"] == "menu":
            yield record
        else:
            fields = ("i", "kind", "sv", "ctx", "pick", "opts")
            branches = [_only(branch, *fields) for branch in record["br"]]
            yield _only(record, "k", "id", "sv") | {"br": branches}


def _commands(records: Iterable[Record]) -> Iterator[Record]:
    """By repository one after the other, so that few runs hold recurrences: without the commands' text."""
    runs = sorted(records, key=lambda run: hashlib.sha256(run["id"].encode()).hexdigest())[:COMMAND_RUNS]
    for run in sorted(runs, key=lambda run: str(run["id"])):
        steps = [_only(step, "h", "n", "pin", "out", "t") for step in run["steps"]]
        yield _only(run, "k", "id", "repo") | {"steps": steps}


def _arrivals(records: Iterable[Record]) -> Iterator[Record]:
    kept: dict[str, int] = {}
    for record in records:
        kept[record["k"]] = kept.get(record["k"], 0) + 1
        if kept[record["k"]] <= ARRIVALS:
            yield record


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the package's data from a folder of records.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    free, share_alike = SHIPPED

    def source(name: str) -> list[Record]:
        return list(_lines(folder / f"{name}.jsonl.gz"))

    react = source("react")
    made: tuple[tuple[Path, Callable[[], Iterator[Record]]], ...] = (
        (free / "routing.jsonl.gz", lambda: _routing(source("routing"))),
        (free / "react.jsonl.gz", lambda: _react(react, "musique")),
        (free / "subagent.jsonl.gz", lambda: _subagent(source("subagent"))),
        (free / "commands.jsonl.gz", lambda: _commands(source("commands"))),
        (free / "arrivals.jsonl.gz", lambda: _arrivals(source("arrivals"))),
        (share_alike / "react.jsonl.gz", lambda: _react(react, "hotpot")),
        (share_alike / "hci.jsonl.gz", lambda: _hci(source("hci"))),
    )
    for path, records in made:
        print(f"{path.parent.name}/{path.name}: {_write(path, records())} records")


if __name__ == "__main__":
    main()
