"""YAML that people write, as plain values: each with its line, and whatever is wrong with it as a problem.

No file is trusted to be small, shallow or sane: what would cost memory or time out of proportion to what a
file is for, or means something else to YAML than to who wrote it, is refused before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from dynbranch.rendering.problems import Problem

Place = tuple[str | int, ...]

# The one in C, where PyYAML has it: a hundred times as fast, and not quadratic in unclosed brackets.
_LOADER: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

MAX_CHARACTERS: Final = 2**20
"""Of one file: the requests of a workflow with long instructions and many tools take a tenth of it."""

MAX_DEPTH: Final = 16
"""Levels of a file: twice what a template has."""

MAX_VALUES: Final = 2**15
"""Keys, texts, lists and mappings of a file."""

MAX_NUMBER: Final = 2**63
"""Its digits can be told, and everything that reads a file can hold it."""

MAX_PROBLEMS: Final = 20
"""Told of one file: who mends those looks again."""

MAX_TOLD_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Document:
    """``value`` is what the file says, if it has no ``problems``."""

    value: Any
    problems: tuple[Problem, ...]
    lines: Mapping[Place, int]
    """On which line the value of every place begins."""

    def told(self, file: str, problems: Iterable[Problem]) -> tuple[str, ...]:
        """One line for each, with the file's name and its own line."""
        found = list(problems)
        told = [f"{file}:{self._line(one)}: {_named(one)}" for one in found[:MAX_PROBLEMS]]
        if len(found) > MAX_PROBLEMS:
            told.append(f"{file}:{self._line(found[MAX_PROBLEMS])}: … and more")
        return tuple(told)

    def _line(self, problem: Problem) -> int:
        place = problem.place
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1) + max(0, problem.line_in_text - 1)


def _named(problem: Problem) -> str:
    place = ".".join(str(part) for part in problem.place)
    told = f"{place}: {problem.message}" if place else problem.message
    return told if len(told) <= MAX_TOLD_CHARACTERS else told[:MAX_TOLD_CHARACTERS] + "…"


def read_yaml(text: str) -> Document:
    """Raises nothing: what can not be read is told."""
    if len(text) > MAX_CHARACTERS:
        return _refused(f"the file has {len(text):,} characters, and at most {MAX_CHARACTERS:,} are read", 1)
    try:
        refused = next(_refusals(text), None)
        node = None if refused else yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        return _refused(f"not YAML: {error.problem}", line)
    except (yaml.YAMLError, ValueError) as error:
        return _refused(f"not YAML: {' '.join(str(error).split())}", 1)
    if refused:
        return refused
    if node is None:
        return _refused("the file is empty", 1)
    walk = _Walk()
    value = walk.value_of(node, ())
    return Document(value, tuple(walk.problems), walk.lines)


def _refused(message: str, line: int) -> Document:
    return Document(None, (Problem((), message, line_in_text=line),), {})


def _refusals(text: str) -> Iterator[Document]:
    """What is refused by its form, before values are made of it."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            # A few aliases of aliases are as much as a gigabyte.
            yield _refused(f"*{event.anchor}: write it out; aliases are not read", line)
        if isinstance(event, yaml.NodeEvent):
            values += 1
            if (tag := getattr(event, "tag", None)) is not None:
                yield _refused(f"{tag}: leave it out; tags are not read", line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            yield _refused(f"more than {MAX_DEPTH} levels; quotes around a text make it one value", line)
        if values > MAX_VALUES:
            yield _refused(f"more than {MAX_VALUES:,} keys and values", line)


class _Walk:
    """Makes plain values of nodes: keys are texts as they are written."""

    def __init__(self) -> None:
        self.lines: dict[Place, int] = {}
        self.problems: list[Problem] = []
        self._scalars = _LOADER("")

    def value_of(self, node: yaml.Node, place: Place) -> Any:
        # The text of a block scalar begins on the line after its mark.
        is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
        self.lines[place] = node.start_mark.line + (2 if is_block else 1)
        if isinstance(node, yaml.SequenceNode):
            return [self.value_of(item, (*place, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        try:
            value = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, ArithmeticError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self.problems.append(Problem(place, f"this can not be read: {reason}; put a text into quotes"))
            return None
        if isinstance(value, int | float) and not abs(value) < MAX_NUMBER:
            self.problems.append(Problem(place, "this number is too large; put a text into quotes"))
        return value

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line - node.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(
                    Problem(place, "a key must be a text; put a value that begins with '{' into quotes", line)
                )
                continue
            name = str(key.value)
            if key.tag == "tag:yaml.org,2002:merge":
                self.problems.append(Problem(place, "<<: write it out; merges are not read", line))
                continue
            self.lines.setdefault((*place, name), key.start_mark.line + 1)
            if name in found:
                self.problems.append(Problem((*place, name), f"the key {name!r} stands twice"))
            found[name] = self.value_of(value, (*place, name))
        return found
