"""``inspect branch``: which branches there are, and the life of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dynbranch.cli.failures import CliFailure
from dynbranch.cli.gateway_calls import ask
from dynbranch.cli.places import find
from dynbranch.cli.screens import console_for_tables, local_time, without_units
from rich.markup import escape
from rich.table import Table

_PATH = "/dynbranch/v1/branches"
_ID_DIGITS = 32


def show_branches(workflow: str, gateway: str | None, *, as_json: bool) -> None:
    query = f"?workflow={quote(workflow, safe='')}" if workflow else ""
    answer = ask(find(gateway).gateway, _PATH + query)
    _print(answer, as_json, [_list(answer["data"])])


def show_branch(branch: str, gateway: str | None, *, as_json: bool) -> None:
    """``branch``: its id, or a beginning that only one of the newest has. Raises CliFailure."""
    at = find(gateway).gateway
    answer = ask(at, f"{_PATH}/{quote(_whole_id(branch, at), safe='')}")
    _print(answer, as_json, branch_tables(answer))


def _whole_id(beginning: str, gateway: str) -> str:
    text = beginning.lower().rstrip("….")
    if len(text) >= _ID_DIGITS:
        return text
    ids = [str(each["branch"]) for each in ask(gateway, _PATH)["data"]]
    found = [id for id in ids if id.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise CliFailure(f"{len(found)} branches begin with {text!r}", f"They are: {', '.join(found[:5])}.")
    raise CliFailure(
        f"none of the {len(ids)} newest branches begins with {text!r}",
        "'dynbranch inspect branch' lists them.",
    )


def _print(answer: Any, as_json: bool, tables: Sequence[Table] | Iterator[Table]) -> None:
    console = console_for_tables()
    if as_json:
        console.print_json(data=answer)
        return
    for table in tables:
        console.print(table)


def _list(branches: Sequence[Mapping[str, Any]]) -> Table:
    title = "branches, newest first" if branches else "the controller knows no branch"
    table = Table("branch", "opened", "workflow", "decision", "state", title=title, title_justify="left")
    table.columns[0].overflow = "fold"  # An id is wanted whole.
    for heading in ("candidates", "fills", "consumed"):
        table.add_column(heading, justify="right")
    for each in branches:
        table.add_row(
            each["branch"],
            local_time(each["opened_unix_ms"]),
            escape(f"{each['workflow_type']} {each['workflow']}".strip()),
            escape(each["decision_point"]),
            each["state"],
            *(str(each[count]) for count in ("candidates", "fills", "consumed")),
        )
    return table


def branch_tables(answer: Mapping[str, Any]) -> Iterator[Table]:
    """What the controller told, with every member that it tells: plain ones, groups of them, lists."""
    plain = {key: value for key, value in answer.items() if not isinstance(value, dict | list)}
    yield _facts("branch", plain)
    for key, value in answer.items():
        match value:
            case dict():
                yield _facts(_words(key), {k: v for k, v in value.items() if not _is_table(v)})
                for name, rows in value.items():
                    if _is_table(rows):
                        yield from _rows(_words(name), rows)
            case [dict(), *_]:
                yield from _rows(_words(key), value)
            case list() if value:
                plain_list = {key: ", ".join(map(str, value))}
                yield _facts("", plain_list)
            case _:
                pass


def _rows(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """One table of the list, and one of each list that its members hold."""
    columns = list(dict.fromkeys(key for row in rows for key in row if not _is_table(row[key])))
    table = Table(*map(_words, columns), title=title, title_justify="left")
    for row in rows:
        cells = {**row, "ranking": _numbered(row["ranking"])} if row.get("ranking") else row
        table.add_row(*(_cell(cells.get(column)) for column in columns))
    yield table
    for number, row in enumerate(rows, 1):
        for key, value in row.items():
            if _is_table(value):
                name = row.get("selection") or number
                yield from _rows(f"{_words(key)} of {title} {name}", value)


def _numbered(ranking: Sequence[str]) -> str:
    return "\n".join(f"{rank}. {selection}" for rank, selection in enumerate(ranking, 1))


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _facts(title: str, facts: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for key, value in facts.items():
        shown = local_time(value) if key.endswith("_unix_ms") and value else _cell(value)
        table.add_row(_words(without_units(key)), shown)
    return table


def _cell(value: Any) -> str:
    match value:
        case None | "" | [] | {}:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case list():
            return escape(", ".join(map(str, value)))
        case dict():
            return escape("\n".join(f"{key}: {each}" for key, each in value.items()))
        case _:
            return escape(str(value))


def _words(key: str) -> str:
    return escape(key.replace("_", " "))
