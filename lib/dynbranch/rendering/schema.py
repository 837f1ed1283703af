"""The file of a template: what may stand in it. ``reading.py`` turns it into a Template."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from dynbranch.rendering.json_path import parse_path
from dynbranch.rendering.patterns import Pattern
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_PARTS = 128
"""Inputs, stages, decision points, and items of each of their lists."""

MAX_TAGS = 2_048
"""Of Jinja, in all texts of a template: to compile more takes many seconds."""

_NAME = re.compile(r"[A-Za-z][\w-]{0,63}")
_IDENTIFIER = re.compile(r"[A-Za-z]\w{0,63}")
_TAG = re.compile(r"\{[{%#]")
_RESERVED = frozenset({"output", "outputs", "selection", "selections", "index", "range", "namespace", "dict"})


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name begins with a letter and holds letters, digits, '_' and '-'")
    return text


def _input_name(text: str) -> str:
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError("an input's name begins with a letter and holds letters, digits and '_'")
    if text in _RESERVED:
        raise ValueError(f"{text!r} is a value that every request's text has; choose another name")
    return text


def _path(text: str) -> str:
    if text:
        parse_path(text)
    return text


def _regex(text: str) -> str:
    if text:
        Pattern(text)
    return text


def _yes_or_no(value: Any) -> Any:
    """YAML reads yes and no as truth values."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


def _single_as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict | str) else value


def _predictors(value: Any) -> Any:
    items = _single_as_list(value)
    return [{"name": item} if isinstance(item, str) else item for item in items] if items else items


NameText = Annotated[str, AfterValidator(_name)]
PathText = Annotated[str, AfterValidator(_path)]
RegexText = Annotated[str, AfterValidator(_regex)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class WhereSpec(_Part):
    input: str | None = None
    request: str | None = None
    output: str | None = None
    path: PathText = ""
    regex: RegexText = ""
    every: bool = False
    as_json: bool = Field(default=False, alias="json")
    call: str | None = None
    """Look into the arguments of calls of this tool; ``*`` for any tool."""
    call_name: bool = False
    """Look at the names of the calls."""

    @model_validator(mode="after")
    def _one_origin(self) -> WhereSpec:
        if sum(origin is not None for origin in (self.input, self.request, self.output)) != 1:
            raise ValueError("say where to look with exactly one of input:, request: and output:")
        if (self.call is not None or self.call_name) and self.output is None:
            raise ValueError("call: and call_name: belong to an output:")
        if self.call is not None and self.call_name:
            raise ValueError("call: and call_name: exclude each other")
        return self


class InputSpec(WhereSpec):
    @model_validator(mode="after")
    def _from_request(self) -> InputSpec:
        if self.request is None:
            raise ValueError("an input is read from a request: say request: with the name of a stage")
        return self


class StageSpec(_Part):
    kind: Literal["chat", "tool"]
    tool: NameText | None = None
    """A tool stage's tool; its own name when it is not said."""
    repeats: bool = False
    speculable: Annotated[Literal["yes", "once", "no"], BeforeValidator(_yes_or_no)] = "no"
    reads: Literal["none", "source"] | Annotated[list[str], Field(max_length=MAX_PARTS)] = "none"
    request: str = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_kind(self) -> StageSpec:
        if self.kind == "chat" and self.tool is not None:
            raise ValueError("tool: belongs to a stage of kind tool")
        if self.kind == "chat" and self.reads == "source":
            raise ValueError("a chat stage has no source of its own: list its records, or say none")
        return self


class PredictorSpec(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: NameText

    @model_validator(mode="after")
    def _plain_parameters(self) -> PredictorSpec:
        for key, value in (self.model_extra or {}).items():
            if not isinstance(value, str | int | float | bool):
                raise ValueError(f"the parameter {key!r} of a predictor is a text, a number or a truth value")
        return self


class CandidatesSpec(_Part):
    menu: WhereSpec | None = None
    texts: Annotated[list[WhereSpec], BeforeValidator(_single_as_list)] = Field(
        default=[], max_length=MAX_PARTS
    )
    unused: bool = False
    at_most: int = Field(default=8, ge=1, le=64)
    predictors: Annotated[list[PredictorSpec], BeforeValidator(_predictors)] = Field(
        min_length=1, max_length=MAX_PARTS
    )


class MomentSpec(_Part):
    arrival: str | None = None
    output: str | None = None

    @model_validator(mode="after")
    def _one_moment(self) -> MomentSpec:
        if (self.arrival is None) == (self.output is None):
            raise ValueError("say arrival: or output: with the name of a stage")
        return self


class ResolvedBySpec(WhereSpec):
    several: bool = False

    @model_validator(mode="after")
    def _not_from_input(self) -> ResolvedBySpec:
        if self.input is not None:
            raise ValueError("a decision is read from an output: or from a request:")
        return self


class DecisionPointSpec(_Part):
    stage: str
    window: Literal["decode", "wait"]
    branch: Literal["exclusive", "independent"]
    resolved_by: ResolvedBySpec
    opens: Annotated[list[MomentSpec], BeforeValidator(_single_as_list)] = Field(
        min_length=1, max_length=MAX_PARTS
    )
    candidates: CandidatesSpec
    then: Annotated[list[str], BeforeValidator(_single_as_list)] = Field(min_length=1, max_length=MAX_PARTS)
    expires_s: float = Field(default=120.0, gt=0, le=86_400)


InputName = Annotated[str, AfterValidator(_input_name)]


class TemplateSpec(_Part):
    workflow_type: NameText
    version: int = Field(ge=1)
    inputs: dict[InputName, InputSpec] = Field(default={}, max_length=MAX_PARTS)
    stages: dict[NameText, StageSpec] = Field(min_length=1, max_length=MAX_PARTS)
    decision_points: dict[NameText, DecisionPointSpec] = Field(default={}, max_length=MAX_PARTS)

    @model_validator(mode="after")
    def _few_tags(self) -> TemplateSpec:
        texts = [text for stage in self.stages.values() for text in (stage.request, *stage.reads)]
        tags = sum(len(_TAG.findall(text)) for text in texts)
        if tags > MAX_TAGS:
            raise ValueError(
                f"the stages' requests have {tags:,} tags ({{{{, {{%), and at most {MAX_TAGS:,} are read"
            )
        return self
