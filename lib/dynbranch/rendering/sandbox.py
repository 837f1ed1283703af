"""Jinja's sandbox, with bounds on what the text of a request may cost.

Values come from harnesses and models, and a thread that renders can not be stopped: a text that counts to
infinity would take the controller with it. Here it fails after so many steps, and no value grows without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Final

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS: Final = 200_000
"""Rounds of loops and calls of one rendering. A hundred rounds of ten messages are a thousand."""

MAX_VALUE: Final = 16 * 2**20
"""Characters of a text, items of a list."""

MAX_BITS: Final = 4096
"""Of a number that is multiplied."""

STEPS: Final = "_steps"
"""Where the count stands among a rendering's values; no input has such a name."""

_PADDING: Final = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map"})


class Steps:
    """Those of one rendering."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Renderings give their ``Steps`` under the name ``STEPS``.

    A dot into an object is its member, never a method: outputs may be of a stage called ``get``.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bounded: dict[str, Any] = {
            "_counted": _counted,
            "_joined": _joined,
            "join": _join(self.filters["join"]),
            "replace": _replace(self.filters["replace"]),
            "batch": _few(self.filters["batch"]),
            "slice": _few(self.filters["slice"]),
        }
        """Filters that stand in the place of Jinja's own."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _step(context)
        if isinstance(getattr(obj, "__self__", None), str):
            name = getattr(obj, "__name__", "")
            if name in _PADDING:
                raise SecurityError(f"{name}() is not there")
            if name in ("join", "replace"):
                raise SecurityError(f"use the filter: | {name}")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "**":
                raise SecurityError("powers are not there")
            case "%" if isinstance(left, str):
                raise SecurityError("formats are not there")
            case "*":
                _check(_size(left) * (right if isinstance(right, int) else 1))
                _check(_size(right) * (left if isinstance(left, int) else 1))
                if isinstance(left, int) and isinstance(right, int):
                    _check(left.bit_length() + right.bit_length(), MAX_BITS)
            case "+":
                _check(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounding().visit(super()._parse(source, name, filename))
        return tree


class _Bounding(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_joined", [], [], None, None, lineno=node.lineno)


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    if isinstance(items, Sized) and not items:
        return items

    def counted() -> Iterator[Any]:
        for item in items:
            _step(context)
            yield item

    return counted()


def _joined(parts: list[Any]) -> str:
    _check(sum(map(_size, parts)))
    return "".join(map(str, parts))


def _step(context: Context) -> None:
    steps = context.resolve(STEPS)
    if isinstance(steps, Steps):
        steps.take()


Filter = Callable[..., Any]


def _join(inner: Filter) -> Filter:
    def join(first: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        items = list(value)
        _check(len(items) * _size(d) + sum(map(_size, items)))
        return inner(first, items, d, attribute)

    return _like(inner, join)


def _replace(inner: Filter) -> Filter:
    def replace(first: Any, s: Any, old: Any, new: Any, count: Any = None) -> Any:
        text = str(s)
        found = len(text) + 1 if not old else text.count(str(old))
        _check(len(text) + found * _size(new))
        return inner(first, s, old, new, count)

    return _like(inner, replace)


def _few(inner: Filter) -> Filter:
    def few(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, int):
                _check(value, MAX_STEPS)
        return inner(*args, **kwargs)

    return _like(inner, few)


def _like(inner: Filter, function: Any) -> Filter:
    """Jinja passes to it first what it passes to the filter that it replaces."""
    passed = getattr(inner, "jinja_pass_arg", None)
    if passed is not None:
        function.jinja_pass_arg = passed
    bounded: Filter = function
    return bounded


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _check(size: int, most: int = MAX_VALUE) -> None:
    if size > most:
        raise SecurityError(f"a value would be larger than {most}")
