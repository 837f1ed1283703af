"""What a harness says in headers: identity, opt-outs, declared reads. Header names are lower
case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import InvalidId, parse_record, parse_version
from dynbranch.domain.reuse import PURE, DeclaredRead, Identity, ReadScope

MAX_IDENTITY_CHARACTERS = 256
MAX_DECLARED_READS = 1000
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
_SWITCHED_ON = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class OptOuts:
    """``may_hit`` False: no-cache. ``may_store`` False: no-store. ``bypass``: straight to the engine."""

    may_hit: bool = True
    may_store: bool = True
    bypass: bool = False


_OPT_OUT_HEADERS = frozenset({"cache-control", "x-dynbranch-bypass"})
_NOTHING_SAID = OptOuts()


def parse_opt_outs(headers: Mapping[str, str]) -> OptOuts:
    """Unknown cache directives mean nothing here, as RFC 9111 asks."""
    if _OPT_OUT_HEADERS.isdisjoint(headers):
        return _NOTHING_SAID
    directives = {
        part.partition("=")[0].strip().lower() for part in headers.get("cache-control", "").split(",")
    }
    return OptOuts(
        may_hit="no-cache" not in directives and "no-store" not in directives,
        may_store="no-store" not in directives,
        bypass=headers.get("x-dynbranch-bypass", "").strip().lower() in _SWITCHED_ON,
    )


def parse_identity(headers: Mapping[str, str], tenant: str) -> Identity:
    """Raises InvalidRequest when an identity header is too long or not printable ASCII."""
    return Identity(
        tenant=tenant,
        workflow_type_id=_identity_header(headers, "x-dynbranch-workflow-type"),
        workflow_id=_identity_header(headers, "x-dynbranch-workflow"),
        agent_id=_identity_header(headers, "x-dynbranch-agent"),
        stage=_identity_header(headers, "x-dynbranch-stage"),
        parent_id=_identity_header(headers, "x-dynbranch-parent"),
    )


def _identity_header(headers: Mapping[str, str], name: str) -> str:
    if name not in headers:
        return ""
    text = headers[name].strip()
    if len(text) > MAX_IDENTITY_CHARACTERS or not _PRINTABLE.fullmatch(text):
        raise InvalidRequest(
            "invalid_identity",
            f"header {name} must be printable ASCII of at most {MAX_IDENTITY_CHARACTERS} characters",
        )
    return text


def parse_read_scope(headers: Mapping[str, str]) -> ReadScope:
    """``x-dynbranch-reads: source/key[=epoch.sequence], …``; ids are percent-encoded. Absent: a pure stage.

    Raises InvalidRequest. A read with no version counts from the workflow's first arrival.
    """
    text = headers.get("x-dynbranch-reads")
    if text is None:
        return PURE
    parts = [part.strip() for part in text.split(",")]
    declared = tuple(_declared_read(part) for part in parts if part)
    if len(declared) > MAX_DECLARED_READS:
        raise InvalidRequest("too_many_reads", f"at most {MAX_DECLARED_READS} reads may be declared")
    return ReadScope(declared=_without_repeats(declared))


def _declared_read(text: str) -> DeclaredRead:
    # A literal '=' in an id is percent-encoded, so the first one starts the version.
    id_text, equals, version_text = text.partition("=")
    try:
        record = parse_record(unquote(id_text.strip(), errors="strict"))
        return DeclaredRead(record, parse_version(version_text.strip()) if equals else None)
    except (InvalidId, UnicodeDecodeError) as problem:
        raise InvalidRequest("invalid_reads", f"header x-dynbranch-reads: {problem}") from None


def _without_repeats(reads: tuple[DeclaredRead, ...]) -> tuple[DeclaredRead, ...]:
    """One read per record. Of several versions the oldest counts: it promises least."""
    oldest: dict[str, DeclaredRead] = {}
    for read in reads:
        known = oldest.get(read.record)
        if known is None or _older(read, known):
            oldest[read.record] = read
    return tuple(oldest[record] for record in sorted(oldest))


def _older(left: DeclaredRead, right: DeclaredRead) -> bool:
    if left.as_of is None or right.as_of is None:
        # Without a version the store decides by the first arrival, and refuses what it does not know.
        return left.as_of is None
    return left.as_of < right.as_of
