"""Faults on command: which requests they hit, how often, and what goes wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from dynbranch.stub_engine.matching import Match, RequestView, ScriptError, checked, match_from


class FaultKind(Enum):
    """What goes wrong.

    Of a generation: STATUS answers with ``status``; HANG says nothing, not even a head; STALL stops after
    ``after_tokens`` tokens; CUT breaks the connection there; MALFORMED sends a chunk there that is no JSON
    and ends; DUPLICATE sends the first chunk twice; WHOLE_CALL sends a tool call's arguments in one piece;
    EXIT ends the process there. Of the server: REFUSE closes the port; HEALTH answers ``status`` to whoever
    asks for the health, whatever is true.
    """

    STATUS = "status"
    HANG = "hang"
    STALL = "stall"
    CUT = "cut"
    MALFORMED = "malformed"
    DUPLICATE = "duplicate_first_chunk"
    WHOLE_CALL = "whole_tool_call"
    EXIT = "exit"
    REFUSE = "refuse"
    HEALTH = "health"


OF_SERVER = frozenset({FaultKind.REFUSE, FaultKind.HEALTH})


@dataclass(frozen=True, slots=True)
class Fault:
    """``skip`` requests that match pass unharmed, then ``times`` are hit (None: all). ``for_s``: how long a
    HANG or STALL lasts before the answer goes on, and how long REFUSE lasts (None: for ever)."""

    kind: FaultKind
    match: Match = field(default_factory=Match)
    times: int | None = None
    skip: int = 0
    after_tokens: int = 0
    status: int = 500
    retry_after_s: float | str | None = None
    for_s: float | None = None
    body: str = ""
    content_type: str = "application/json"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind.value}


def fault_from(document: Any) -> Fault:
    """Raises ScriptError."""
    values = checked(document, Fault, "fault")
    kinds = {kind.value: kind for kind in FaultKind}
    if not isinstance(values.get("kind"), str) or values["kind"] not in kinds:
        raise ScriptError(f"fault.kind is one of {', '.join(sorted(kinds))}")
    values["kind"] = kinds[values["kind"]]
    if "match" in values:
        values["match"] = match_from(values["match"])
    for name in ("times", "skip", "after_tokens", "status", "retry_after_s", "for_s"):
        value = values.get(name)
        if name == "retry_after_s" and isinstance(value, str):
            continue
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise ScriptError(f"fault.{name} is not a number from 0 on")
    return Fault(**values)


class Faults:
    """Those in force, oldest first. The first that fits a request hits it, and only that one."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self.active: list[Fault] = list(faults)

    def add(self, fault: Fault) -> None:
        self.active.append(fault)

    def clear(self) -> None:
        self.active.clear()

    def strike(self, view: RequestView) -> Fault | None:
        """The fault of this request, which counts as used."""
        for number, fault in enumerate(self.active):
            if fault.kind in OF_SERVER or not fault.match.fits(view):
                continue
            if fault.skip:
                self.active[number] = replace(fault, skip=fault.skip - 1)
                continue
            self._use(number, fault)
            return fault
        return None

    def _use(self, number: int, fault: Fault) -> None:
        if fault.times is not None:
            left = replace(fault, times=fault.times - 1)
            self.active[number : number + 1] = [left] if left.times else []

    def health_status(self) -> int | None:
        return next((fault.status for fault in self.active if fault.kind is FaultKind.HEALTH), None)
