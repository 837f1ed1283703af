"""The ways in which a workflow is run side by side, and templates that keep them from teaching one another.

Each arm that runs ahead has workflow types of its own, so that a predictor knows only what that arm has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dynbranch.demo.flows import MENUS, REACT, ROUTING_CHAIN, SUB_AGENTS
from dynbranch.demo.stack import TEMPLATES


class Way(Enum):
    """Which gateway an arm goes through."""

    FLOOR = "floor"
    UNFORESEEING = "unforeseeing"
    FORESEEING = "foreseeing"


@dataclass(frozen=True, slots=True)
class Arm:
    """``shares``: its workflows share results, so that one may be served what another has executed; else each
    brings an API key of its own, and nothing but what runs ahead can help it. ``suffix`` is that of its
    workflow types."""

    name: str
    title: str
    way: Way
    suffix: str = ""
    shares: bool = False


FLOOR = Arm("floor", "disabled (floor)", Way.FLOOR)
REUSE_ONLY = Arm("c1_only", "reuse only", Way.UNFORESEEING, shares=True)
AHEAD_ONLY = Arm("c1_off", "running ahead only", Way.FORESEEING, "-alone")
BOTH = Arm("all_on", "both", Way.FORESEEING, "-both", shares=True)
WRONG = Arm("always_wrong", "a predictor that is never right", Way.FORESEEING, "-wrong")

WRONG_KINDS = (ROUTING_CHAIN, MENUS)
"""What a wrong candidate leads to is nothing that the harness asks for. (Another title that is looked up may
lead to the passage that the right one leads to.)"""

_WRONG: dict[str, tuple[tuple[str, str], ...]] = {
    MENUS: (
        ("regex: '^\\d+\\. (.*)$'", "regex: '^\\d+\\. (.*).$'"),
        ("predictors: [offer, history]", "predictors: [offer]"),
    ),
    ROUTING_CHAIN: (
        (
            "  user: {request: route,",
            "  short: {request: route, path: '$.messages[0].content', "
            'regex: \'^\\{"name":"([^"]*)[^"]",\', every: true}\n  user: {request: route,',
        ),
        ("menu: {input: functions, path: '$[*].name'}", "menu: {input: short}"),
        ("predictors: [context, history]", "predictors: [context]"),
        (
            "functions | selectattr('name', 'equalto', selection) | first",
            "functions[short.index(selection) if selection in short else 0]",
        ),
        ("Write the arguments of this function as JSON.", "Write arguments of this function as JSON."),
    ),
}


class TemplateChanged(Exception):
    """A shipped template is no longer what the wrong one is made from."""


_SILENT = ("predictors: [context, history, stream]", "predictors: [context, history]")
_ONE_FILL: Mapping[str, tuple[tuple[str, str], ...]] = {
    kind: (("      at_most: 3\n", "      at_most: 1\n"), _SILENT) for kind in (REACT, SUB_AGENTS)
} | {ROUTING_CHAIN: (("      unused: true\n", "      unused: true\n      at_most: 1\n"), _SILENT)}
"""While a model decodes, two cores have room for one fill beside it, and for none of a name that is only
spoken of; while a person thinks, for more."""


def write_templates(folder: Path, arms: tuple[Arm, ...]) -> None:
    """The shipped templates once for each arm that runs ahead, with one fill in a decode's window. Raises
    TemplateChanged."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(TEMPLATES.glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        kind = file.stem
        for arm in arms:
            if arm.way is not Way.FORESEEING or (arm is WRONG and kind not in WRONG_KINDS):
                continue
            written = _replaced(text, f"workflow_type: {kind}\n", f"workflow_type: {kind}{arm.suffix}\n")
            changes = (*_ONE_FILL.get(kind, ()), *(_WRONG[kind] if arm is WRONG else ()))
            for old, new in changes:
                written = _replaced(written, old, new)
            (folder / f"{kind}{arm.suffix}.yaml").write_text(written, encoding="utf-8")


def _replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise TemplateChanged(f"{old!r} does not stand in the shipped template")
    return text.replace(old, new)
