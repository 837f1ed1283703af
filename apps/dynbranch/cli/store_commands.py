"""``inspect``, ``explain``, ``write`` and ``stats``: looking at the store, and telling it of changes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from dynbranch.cli.failures import CliFailure
from dynbranch.cli.gateway_calls import ask
from dynbranch.cli.places import find
from dynbranch.cli.screens import console_for_tables, local_time, without_units
from rich.markup import escape
from rich.table import Table

_STATS_TIMEOUT_S = 5.0
PATHS: Mapping[str, str] = MappingProxyType(
    {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
)
_ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "csl": "Demands that reached the store since it started. Sampled requests and no-store never do; "
        "one that had to be asked again counts twice.",
        "controller": "Requests that gateways reported since it started, each once, however it was answered: "
        "a sampled one is a miss here and none in the store.",
    }
)
_OF_MESSAGES = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "document", "image"})


def show_entry(name: str, gateway: str | None, *, as_json: bool) -> None:
    answer = ask(find(gateway).gateway, f"/dynbranch/v1/entries/{quote(name, safe='')}")
    _print(answer, as_json, _entry_tables)


def show_explanation(file: Path, protocol: str, gateway: str | None, *, as_json: bool) -> None:
    """``protocol``: what the body is written in; empty: as it looks."""
    try:
        body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CliFailure(f"{file} can not be read: {error.strerror}") from None
    path = f"/dynbranch/v1/explain{PATHS[protocol or protocol_of(body)]}"
    answer = ask(find(gateway).gateway, path, body)
    _print(answer, as_json, explanation_tables)


def protocol_of(body: bytes) -> str:
    """What a body looks like. One that both could have sent counts as Chat Completions."""
    try:
        asked = json.loads(body)
    except ValueError:
        return "chat"
    match asked:
        case {"messages": list(messages)}:
            tools = asked.get("tools")
            speaks = (
                "system" in asked
                or "stop_sequences" in asked
                or any(isinstance(t, dict) and "input_schema" in t for t in _list_of(tools))
                or any(
                    isinstance(block, dict)
                    and (block.get("type") in _OF_MESSAGES or "cache_control" in block)
                    for message in messages
                    if isinstance(message, dict)
                    for block in _list_of(message.get("content"))
                )
            )
            return "messages" if speaks else "chat"
        case {"input": _}:
            return "responses"
        case _:
            return "chat"


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
    console = console_for_tables()
    if as_json:
        console.print_json(data=answer)
        return
    for shown in tables(answer):
        console.print(shown, soft_wrap=isinstance(shown, str), highlight=False)


def _facts(title: str, facts: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for key, value in facts.items():
        shown = local_time(value) if key.endswith("_unix_ms") else str(value)
        table.add_row(without_units(key), escape(shown))
    return table


def _entry_tables(answer: Mapping[str, Any]) -> list[Table]:
    tables: list[Table] = []
    if entry := answer.get("entry"):
        plain = {key: value for key, value in entry.items() if key != "derivations"}
        tables.append(_facts("stored", {"name": answer["name"], **plain}))
        derivations = Table("read token", "reads", "made from", title="why it exists", title_justify="left")
        for each in entry["derivations"]:
            derivations.add_row(
                each["read_token"],
                "\n".join(f"{escape(read['record'])} as of {read['as_of']}" for read in each["reads"]),
                "\n".join(producer["name"] for producer in each["producers"]),
            )
        tables.append(derivations)
    if went := answer.get("invalidations"):
        headings = ("incarnation", "went", "version", "because of", "told by")
        table = Table(*headings, title="gone", title_justify="left")
        for each in went:
            cause = each["record"] or f"its producer {each['lost_producer']['name']} fell"
            at = local_time(each["at_unix_ms"]) if "at_unix_ms" in each else ""
            texts = (at, each["version"], escape(cause), escape(each["reporter"]))
            table.add_row(str(each["incarnation"]), *texts)
        tables.append(table)
    return tables or [
        _facts("nothing is stored", {"name": answer["name"], "running now": answer.get("live", [])})
    ]


def explanation_tables(answer: Mapping[str, Any]) -> list[Table]:
    shown = ("name", "protocol", "outcome", "why", "model", "level", "sharing")
    summary = {key: answer[key] for key in shown if answer.get(key) is not None}
    fields = Table("field", "class", title="fields", title_justify="left")
    for each in answer.get("fields", []):
        unknown = "" if each["known"] else " (unknown: it determines)"
        fields.add_row(escape(each["path"]), each["class"] + unknown)
    return [_facts("this request", summary), fields, *_nearest(answer.get("nearest"))]


def _nearest(nearest: Mapping[str, Any] | None) -> list[Table]:
    """The stored request that is most like it, and what is different."""
    if nearest is None:
        return []
    other = f"workflow {nearest['workflow']}" if nearest["workflow"] else "no workflow that is named"
    who = "the same workflow" if nearest["same_workflow"] else other
    title = f"stored and most like it, of {escape(who)}: {nearest['name']}"
    table = Table("differs in", "this request", "the stored one", title=title, title_justify="left")
    for one in nearest["differences"]:
        place = one["from_character"]
        here = (one["here"] or "-") + (f", other from character {place}" if place is not None else "")
        table.add_row(escape(one["path"] or "(all)"), escape(here), escape(one["there"] or "-"))
    if nearest["more"]:
        table.add_row(f"and {nearest['more']} more", "", "")
    return [table]


def _write_tables(answer: Mapping[str, Any]) -> list[Table]:
    shown = {key: value for key, value in answer.items() if key != "invalidated_names"}
    tables = [_facts("written", shown)]
    if names := answer.get("invalidated_names"):
        table = Table("invalidated")
        for name in names:
            table.add_row(name)
        tables.append(table)
    return tables


def _stats_tables(answer: Mapping[str, Any]) -> list[Table | str]:
    shown: list[Table | str] = []
    for service, counted in answer.items():
        shown.append(_counts(service, counted))
        if counted is not None and service in _ABOUT:
            shown.append(_ABOUT[service] + "\n")
    return shown


def _counts(service: str, counted: Mapping[str, Any] | None) -> Table:
    table = Table(title=service, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    if counted is None:
        table.add_row("this gateway has none", "")
        return table
    for key, value in counted.items():
        if isinstance(value, dict):
            for name, count in value.items():
                table.add_row(f"{_words(key)}: {escape(name)}", f"{count:,}")
            continue
        table.add_row(_words(key), f"{value:,}" if isinstance(value, int | float) else escape(str(value)))
    outcomes = counted.get("outcomes", {}) if service == "controller" else counted
    if rate := _reused_share(outcomes):
        table.add_section()
        table.add_row("reused", rate)
    return table


def _reused_share(counted: Mapping[str, Any]) -> str:
    """Of all that asked, those that needed no execution of their own. Both spellings of a count."""
    ways = (("hits", "hit"), ("joins", "joined"), ("promotions", "promoted"), ("adoptions", "adopted"))
    reused = sum(counted.get(many, counted.get(one, 0)) for many, one in ways)
    asked = reused + counted.get("misses", counted.get("miss", 0))
    return f"{reused:,} of {asked:,}, {reused / asked:.1%}" if asked else ""


def _words(key: str) -> str:
    return escape(key.replace("_", " "))
