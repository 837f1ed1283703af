"""Requests written by Jinja2: sandboxed, with strict names, and with filters that spell JSON as harnesses do.

Jinja's own ``tojson`` is not there: it sorts keys and escapes for HTML.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.template import (
    Output,
    RenderFailed,
    Stage,
    Template,
    ToolCall,
    Window,
    WorkflowContext,
)
from dynbranch.naming.document import Json, Number, parse_text
from dynbranch.rendering.constants import joined_lines
from dynbranch.rendering.json_text import SPELLINGS, Spelling, spell_inside, spell_json
from dynbranch.rendering.problems import Problem, TemplateInvalid
from dynbranch.rendering.sandbox import STEPS, BoundedSandbox, Steps
from dynbranch.rendering.yaml_text import MAX_PROBLEMS
from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, Undefined, meta, nodes
from jinja2 import Template as Compiled

MAX_BODY_CHARACTERS: Final = 16 * 2**20
"""More than a gateway takes from a client: a request that long was never sent by a harness."""

_OWN_NAMES: Final = ("output", "outputs", "selection", "selections", "index")
_KEPT_FILTERS: Final = (
    "first", "last", "join", "map", "select", "reject", "selectattr", "rejectattr", "length", "list", "trim",
    "lower", "upper", "replace", "default", "unique", "reverse", "int", "batch", "slice", "truncate", "items",
)  # fmt: skip
_FAULTS: Final = (
    TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError,
    MemoryError,
)  # fmt: skip
_KEPT_GLOBALS: Final = ("range", "namespace", "dict")


class SeenOutput:
    """An output as a request's text sees it: ``text``, ``calls``, and ``json``, the text read as JSON."""

    __slots__ = ("_output", "_parsed")

    def __init__(self, output: Output | ToolCall) -> None:
        self._output = output
        self._parsed: list[Json] = []

    @property
    def text(self) -> str:
        return self._output.text if isinstance(self._output, Output) else self._output.arguments

    @property
    def name(self) -> str:
        return self._output.name if isinstance(self._output, ToolCall) else ""

    @property
    def arguments(self) -> str:
        return self.text

    @property
    def json(self) -> Json:
        if not self._parsed:
            self._parsed.append(parse_text(self.text))
        return self._parsed[0]

    @property
    def calls(self) -> list[SeenOutput]:
        calls = self._output.calls if isinstance(self._output, Output) else ()
        return [SeenOutput(call) for call in calls]


class JinjaRenderer:
    """The Renderer of one template. Compiles every stage once; raises TemplateInvalid for what can not be
    compiled, or renders from what a fill can not have."""

    def __init__(self, template: Template) -> None:
        self._environment = _environment()
        found = (problem for stage in template.stages for problem in _problems(template, stage))
        problems = list(islice(found, MAX_PROBLEMS + 1))
        if problems:
            raise TemplateInvalid(tuple(problems))
        self._stages = {
            stage.name: self._environment.from_string(joined_lines(stage.request))
            for stage in template.stages
        }
        self._records = {
            stage.name: [self._environment.from_string(record) for record in stage.reads.records]
            for stage in template.stages
        }
        self._point_of = {stage: point.name for point in template.decision_points for stage in point.then}
        self._stage_names = frozenset(self._stages)
        self._points = frozenset(point.name for point in template.decision_points)

    def render(self, stage: str, context: WorkflowContext, selection: str | None = None) -> bytes:
        return self._write(stage, self._stages[stage], context, selection).encode()

    def reads(self, stage: str, context: WorkflowContext, selection: str | None = None) -> tuple[str, ...]:
        return tuple(self._write(stage, record, context, selection) for record in self._records[stage])

    def _write(self, stage: str, compiled: Compiled, context: WorkflowContext, selection: str | None) -> str:
        values = self._values(stage, context, selection)
        parts: list[str] = []
        length = 0
        try:
            for part in compiled.generate(values):
                length += len(part)
                if length > MAX_BODY_CHARACTERS:
                    raise _failed(stage, f"the request is longer than {MAX_BODY_CHARACTERS} characters")
                parts.append(part)
        except RenderFailed:
            raise
        except InvalidRequest as error:
            raise _failed(stage, f"an output that is read as JSON is none: {error.message}") from None
        # Whatever a text with slots does with values that it was not written for ends here, and it is not
        # a fault of the process.
        except _FAULTS as error:
            message = str(error).replace("'dict object' has no attribute", "nothing is known of")
            raise _failed(stage, message or type(error).__name__) from None
        text = "".join(parts)
        if not _encodes(text):
            raise _failed(stage, "the request would hold half of a surrogate pair")
        return text

    def _values(self, stage: str, context: WorkflowContext, selection: str | None) -> dict[str, Any]:
        point = self._point_of.get(stage)
        if point is not None and selection is not None:
            context = context.with_selection(point, (selection,))
        values: dict[str, Any] = {STEPS: Steps(), **context.inputs}
        seen = {name: [SeenOutput(o) for o in outputs] for name, outputs in context.outputs.items()}
        values["outputs"] = {name: seen.get(name, []) for name in self._stage_names}
        values["output"] = {name: outputs[-1] for name, outputs in seen.items() if outputs}
        values["selections"] = {
            name: [s for made in context.selections.get(name, ()) for s in made] for name in self._points
        }
        values["index"] = len(context.outputs.get(stage, ()))
        chosen = context.selections.get(point, ()) if point is not None else ()
        if chosen and len(chosen[-1]) == 1:
            values["selection"] = chosen[-1][0]
        return values


def _failed(stage: str, message: str) -> RenderFailed:
    return RenderFailed(
        "render_failed",
        f"the request of stage {stage} can not be written: {message}",
        advice="See whether the workflow so far has what the template's request needs.",
        facts={"stage": stage},
    )


def _environment() -> BoundedSandbox:
    environment = BoundedSandbox(
        undefined=StrictUndefined, autoescape=False, finalize=_printable, keep_trailing_newline=True
    )
    environment.filters = {name: environment.filters[name] for name in _KEPT_FILTERS} | environment.bounded
    environment.globals = {name: environment.globals[name] for name in _KEPT_GLOBALS}
    for name, spelling in SPELLINGS.items():
        environment.filters[name] = _spelled(spelling)
    environment.filters["in_json"] = lambda text: _inside(text, ascii=False)
    environment.filters["in_json_ascii"] = lambda text: _inside(text, ascii=True)
    environment.filters["inner"] = _inner
    environment.filters["number"] = _number
    environment.filters["parse"] = lambda text: parse_text(_text(text))
    return environment


def _spelled(spelling: Spelling) -> Any:
    def spell(value: Any) -> str:
        return spell_json(_defined(value), spelling)

    return spell


def _defined(value: Any) -> Any:
    """An undefined value tells its name when it is touched."""
    if isinstance(value, Undefined):
        str(value)
    return value


def _text(value: Any) -> str:
    if isinstance(_defined(value), Number):
        return str(value.text)
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {type(value).__name__}")
    return value


def _inside(value: Any, *, ascii: bool) -> str:
    return spell_inside(_text(value), ascii=ascii)


def _inner(text: str) -> str:
    """A spelled list or object without its brackets: to go on after its items."""
    return text[1:-1]


def _number(value: Any) -> int | float:
    text = _text(value)
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _printable(value: Any) -> Any:
    """Only texts and numbers have one spelling: for the rest the author says which."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, bool) or not isinstance(value, str | int | float | Undefined):
        raise TypeError(f"a value of type {type(value).__name__} needs a spelling: | json or | json_compact")
    return value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problems(template: Template, stage: Stage) -> Iterator[Problem]:
    places: Mapping[tuple[str | int, ...], str] = {
        ("stages", stage.name, "request"): stage.request,
        **{("stages", stage.name, "reads", i): text for i, text in enumerate(stage.reads.records)},
    }
    for place, text in places.items():
        yield from _problems_of_text(template, stage, place, text)


def _problems_of_text(
    template: Template, stage: Stage, place: tuple[str | int, ...], text: str
) -> Iterator[Problem]:
    environment = _environment()
    try:
        tree = environment.parse(text)
        environment.from_string(joined_lines(text))
    except TemplateSyntaxError as error:
        message = str(error.message)
        if "'tojson'" in message:
            message += " Use | json (Python's json.dumps) or | json_compact (the openai client's)."
        yield Problem(place, message, line_in_text=error.lineno)
        return
    # Jinja makes Python of a text: what its author nests deeper than Python allows ends here, in many ways.
    except Exception as error:  # noqa: BLE001
        yield Problem(place, f"this text can not be compiled: {str(error) or type(error).__name__}")
        return
    known = {item.name for item in template.inputs} | set(_OWN_NAMES)
    for name in sorted(meta.find_undeclared_variables(tree) - known - set(_KEPT_GLOBALS)):
        near = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}."
        yield Problem(place, f"{name!r} is neither an input nor a value of the workflow; {hint}")
    yield from _output_problems(template, stage, place, tree)


def _output_problems(
    template: Template, stage: Stage, place: tuple[str | int, ...], tree: nodes.Template
) -> Iterator[Problem]:
    names = {other.name for other in template.stages}
    undecided = {
        point.stage: point.name
        for point in template.decision_points
        if stage.name in point.then and point.window is Window.DECODE
    }
    for name, line in _outputs_used(tree):
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            yield Problem(place, f"there is no stage {name!r}{hint}", line_in_text=line)
        elif name in undecided:
            yield Problem(
                place,
                f"a fill of {stage.name!r} runs before the output of {name!r} is there, which decides "
                f"{undecided[name]!r}. Use 'selection', or take the stage out of 'then'.",
                line_in_text=line,
            )


def _outputs_used(tree: nodes.Template) -> Iterator[tuple[str, int]]:
    for node in tree.find_all(nodes.Getattr):
        if _is_outputs(node.node):
            yield node.attr, node.lineno
    for item in tree.find_all(nodes.Getitem):
        if _is_outputs(item.node) and isinstance(item.arg, nodes.Const) and isinstance(item.arg.value, str):
            yield item.arg.value, item.lineno


def _is_outputs(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name in ("output", "outputs")
