"""A template's file read: YAML with lines, checked, and turned into a Template."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Input,
    Moment,
    MomentKind,
    Origin,
    OutputPart,
    PredictorUse,
    Reads,
    ReadsKind,
    Speculable,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)
from dynbranch.rendering.constants import constant_parts
from dynbranch.rendering.problems import Problem, TemplateInvalid
from dynbranch.rendering.schema import (
    CandidatesSpec,
    DecisionPointSpec,
    StageSpec,
    TemplateSpec,
    WhereSpec,
)
from dynbranch.rendering.yaml_text import MAX_PROBLEMS, Place, read_yaml
from pydantic import ValidationError


def parse_template(
    text: str, file: str, compile_requests: Callable[[Template], object] | None = None
) -> Template:
    """``file`` is what messages call it. ``compile_requests`` looks into the requests' texts and may raise
    TemplateInvalid: only who renders needs Jinja.

    Raises TemplateInvalid, whose message names file and line of every problem.
    """
    read = read_yaml(text)
    problems = list(read.problems)
    if not problems:
        try:
            template = _template(TemplateSpec.model_validate(read.value), text)
            problems = _first(_loose_ends(template))
            if not problems:
                if compile_requests is not None:
                    compile_requests(template)
                return template
        except ValidationError as error:
            problems = [_told(one) for one in error.errors()[: MAX_PROBLEMS + 1]]
        except TemplateInvalid as error:
            problems = [*error.problems]
    raise TemplateInvalid(tuple(problems), read.told(file, problems))


def _first(problems: Iterator[Problem]) -> list[Problem]:
    """As many as are told: to find what comes near to a name that is not there takes its time."""
    return list(islice(problems, MAX_PROBLEMS + 1))


def _told(error: Any) -> Problem:
    # Pydantic names the alternatives of a value too, as "list[str]"; no key of a template has a bracket.
    place = tuple(part for part in error["loc"] if isinstance(part, int) or "[" not in str(part))
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = sorted(_known_keys(place))
        near = difflib.get_close_matches(str(place[-1]), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
        message = f"this key is unknown; {hint}" if known else "this key is unknown"
    elif error["type"] == "missing":
        message = "this key is missing"
    return Problem(place, message)


def _known_keys(place: Place) -> set[str]:
    match place:
        case (_,):
            model: Any = TemplateSpec
        case ("stages", _, _):
            model = StageSpec
        case ("decision_points", _, _):
            model = DecisionPointSpec
        case ("decision_points", _, "candidates", _):
            model = CandidatesSpec
        case ("inputs", _, _) | (*_, "resolved_by", _) | (*_, "menu", _) | (*_, "texts", int(), _):
            model = WhereSpec
        case _:
            return set()
    return {field.alias or name for name, field in model.model_fields.items()}


def _loose_ends(template: Template) -> Iterator[Problem]:
    """Names that lead nowhere."""
    stages = [stage.name for stage in template.stages]
    inputs = [item.name for item in template.inputs]
    speculable = [s.name for s in template.stages if s.speculable is not Speculable.NO]
    for item in template.inputs:
        yield from _unknown(("inputs", item.name, "request"), "stage", item.where.name, stages)
    for point in template.decision_points:
        place = ("decision_points", point.name)
        yield from _unknown((*place, "stage"), "stage", point.stage, stages)
        for number, moment in enumerate(point.opens):
            yield from _unknown((*place, "opens", number), "stage", moment.stage, stages)
        wheres = [
            ("resolved_by", point.resolved_by),
            *((("candidates"), where) for where in (point.candidates.menu, *point.candidates.texts) if where),
        ]
        for key, where in wheres:
            known = inputs if where.origin is Origin.INPUT else stages
            what = "input" if where.origin is Origin.INPUT else "stage"
            yield from _unknown((*place, key), what, where.name, known)
        yield from _then_problems(place, point, stages, speculable)


def _then_problems(
    place: Place, point: DecisionPoint, stages: list[str], speculable: list[str]
) -> Iterator[Problem]:
    for number, name in enumerate(point.then):
        problems = list(_unknown((*place, "then", number), "stage", name, stages))
        yield from problems
        if not problems and name not in speculable:
            yield Problem(
                (*place, "then", number),
                f"the stage {name!r} is not speculable: say 'speculable: yes' (or once) there, "
                "or leave it out",
            )


def _unknown(place: Place, what: str, name: str, known: Iterable[str]) -> Iterator[Problem]:
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}."
        yield Problem(place, f"there is no {what} {name!r}; {hint}")


def _template(spec: TemplateSpec, text: str) -> Template:
    return Template(
        workflow_type=spec.workflow_type,
        version=spec.version,
        inputs=tuple(Input(name, _where(where)) for name, where in spec.inputs.items()),
        stages=tuple(_stage(name, stage) for name, stage in spec.stages.items()),
        decision_points=tuple(_point(name, point) for name, point in spec.decision_points.items()),
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


def _where(spec: WhereSpec) -> Where:
    if spec.input is not None:
        origin, name = Origin.INPUT, spec.input
    elif spec.request is not None:
        origin, name = Origin.REQUEST, spec.request
    else:
        origin, name = Origin.OUTPUT, spec.output or ""
    part = OutputPart.TEXT
    if spec.call_name:
        part = OutputPart.CALL_NAME
    elif spec.call is not None:
        part = OutputPart.CALL_ARGUMENTS
    call = "" if spec.call in (None, "*") else str(spec.call)
    return Where(origin, name, spec.path, spec.regex, spec.every, spec.as_json, part, call)


def _stage(name: str, spec: StageSpec) -> Stage:
    if isinstance(spec.reads, list):
        reads = Reads(ReadsKind.DECLARED, tuple(spec.reads))
    else:
        reads = Reads(ReadsKind(spec.reads))
    kind = StageKind(spec.kind)
    return Stage(
        name=name,
        kind=kind,
        request=spec.request,
        target=(spec.tool or name) if kind is StageKind.TOOL else "",
        speculable=Speculable(spec.speculable),
        reads=reads,
        repeats=spec.repeats,
        constants=constant_parts(spec.request),
    )


def _point(name: str, spec: DecisionPointSpec) -> DecisionPoint:
    candidates = spec.candidates
    return DecisionPoint(
        name=name,
        stage=spec.stage,
        resolved_by=_where(spec.resolved_by),
        several=spec.resolved_by.several,
        window=Window(spec.window),
        branching=Branching(spec.branch),
        opens=tuple(
            Moment(MomentKind.ARRIVAL, moment.arrival)
            if moment.arrival is not None
            else Moment(MomentKind.OUTPUT, moment.output or "")
            for moment in spec.opens
        ),
        candidates=Candidates(
            predictors=tuple(
                PredictorUse(use.name, tuple(sorted((use.model_extra or {}).items())))
                for use in candidates.predictors
            ),
            menu=None if candidates.menu is None else _where(candidates.menu),
            texts=tuple(_where(where) for where in candidates.texts),
            unused=candidates.unused,
            at_most=candidates.at_most,
        ),
        then=tuple(spec.then),
        expires_s=spec.expires_s,
    )
