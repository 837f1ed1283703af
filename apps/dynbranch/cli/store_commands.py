"""``inspect``, ``explain``, ``write`` and ``stats``: looking at the store, and telling it of changes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dynbranch.cli.failures import CliFailure
from dynbranch.cli.gateway_calls import ask
from dynbranch.cli.places import find
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_STATS_TIMEOUT_S = 5.0


def show_entry(name: str, gateway: str | None, *, as_json: bool) -> None:
    answer = ask(find(gateway).gateway, f"/dynbranch/v1/entries/{quote(name, safe='')}")
    _print(answer, as_json, _entry_tables)


def show_explanation(file: Path, gateway: str | None, *, as_json: bool) -> None:
    try:
        body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CliFailure(f"{file} can not be read: {error.strerror}") from None
    answer = ask(find(gateway).gateway, "/dynbranch/v1/explain", body)
    _print(answer, as_json, _explanation_tables)


def report_write(records: Sequence[str], gateway: str | None, reporter: str, *, as_json: bool) -> None:
    body = json.dumps({"records": list(records), "reporter": reporter}).encode()
    answer = ask(find(gateway).gateway, "/dynbranch/v1/writes", body)
    _print(answer, as_json, _write_tables)


def show_stats(csl: str, controller: str, gateway: str | None, *, as_json: bool) -> None:
    """Asks the gateway, or the services themselves where both are named."""
    if bool(csl) != bool(controller):
        advice = "Without --csl and --controller the gateway is asked."
        raise CliFailure("name both services, or none", advice)
    path = "/dynbranch/v1/stats"
    told = asyncio.run(_stats(csl, controller)) if csl else ask(find(gateway).gateway, path)
    _print(told, as_json, _stats_tables)


async def _stats(csl: str, controller: str) -> dict[str, Any]:
    from dynbranch.clients.controller import GrpcController
    from dynbranch.clients.csl import GrpcCsl
    from dynbranch.clients.ports import Unreachable

    store, events = GrpcCsl(csl), GrpcController(controller)
    try:
        counted = asdict(await store.stats(timeout_s=_STATS_TIMEOUT_S))
        seen = asdict(await events.summary(timeout_s=_STATS_TIMEOUT_S))
    except Unreachable as error:
        raise CliFailure(f"no answer: {error}", "Name the services with --csl and --controller.") from None
    finally:
        await store.close()
        await events.close()
    version = counted["version"]
    counted["version"] = f"{version['epoch']}.{version['sequence']}"
    seen["outcomes"] = dict(seen["outcomes"])
    seen["saved_ms"] = round(seen["saved_ms"], 1)
    return {"csl": counted, "controller": seen}


def _print(answer: Mapping[str, Any], as_json: bool, tables: Any) -> None:
    console = Console()
    if as_json:
        console.print_json(data=answer)
        return
    for table in tables(answer):
        console.print(table)


def _facts(title: str, facts: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for key, value in facts.items():
        table.add_row(key, escape(str(value)))
    return table


def _entry_tables(answer: Mapping[str, Any]) -> list[Table]:
    tables: list[Table] = []
    if entry := answer.get("entry"):
        plain = {key: value for key, value in entry.items() if key != "derivations"}
        tables.append(_facts(f"stored under {answer['name']}", plain))
        derivations = Table("read token", "reads", "made from", title="why it exists", title_justify="left")
        for each in entry["derivations"]:
            derivations.add_row(
                each["read_token"],
                "\n".join(f"{escape(read['record'])} as of {read['as_of']}" for read in each["reads"]),
                "\n".join(producer["name"][:16] + "…" for producer in each["producers"]),
            )
        tables.append(derivations)
    if went := answer.get("invalidations"):
        table = Table("incarnation", "version", "because of", "told by", title="gone", title_justify="left")
        for each in went:
            cause = each["record"] or f"its producer {each['lost_producer']['name'][:16]}… fell"
            table.add_row(str(each["incarnation"]), each["version"], escape(cause), escape(each["reporter"]))
        tables.append(table)
    return tables or [
        _facts(f"nothing is stored under {answer['name']}", {"running now": answer.get("live", [])})
    ]


def _explanation_tables(answer: Mapping[str, Any]) -> list[Table]:
    shown = ("name", "outcome", "why", "model", "level", "sharing")
    summary = {key: answer[key] for key in shown if answer.get(key) is not None}
    fields = Table("field", "class", title="fields", title_justify="left")
    for each in answer.get("fields", []):
        unknown = "" if each["known"] else " (unknown: it determines)"
        fields.add_row(escape(each["path"]), each["class"] + unknown)
    return [_facts("this request", summary), fields]


def _write_tables(answer: Mapping[str, Any]) -> list[Table]:
    shown = {key: value for key, value in answer.items() if key != "invalidated_names"}
    tables = [_facts("written", shown)]
    if names := answer.get("invalidated_names"):
        table = Table("invalidated")
        for name in names:
            table.add_row(name)
        tables.append(table)
    return tables


def _stats_tables(answer: Mapping[str, Any]) -> list[Table]:
    return [_facts(service, counted or {"": "this gateway has none"}) for service, counted in answer.items()]
