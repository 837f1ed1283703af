"""``tools.yaml``: which tools a backend offers, and how far their results may be reused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dynbranch.domain.engine import Freshness
from dynbranch.rendering.problems import Problem
from dynbranch.rendering.yaml_text import read_yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class ToolsFileError(Exception):
    """A tools file that can not be used. The message names the file and the line of thought."""


class _BadName(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Tool(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """Where a call is posted as JSON."""
    description: str = ""
    source: str = ""
    """The collection of records that the tool reads. Without one nothing is stored."""
    freshness: Freshness = Freshness.NONE
    code_version: str = ""
    """Changes whenever the tool's code does: what an older version answered is not reused."""
    timeout_s: float = Field(default=60.0, gt=0)
    max_result_bytes: int = Field(default=8 * 2**20, gt=0, le=48 * 2**20)
    """A larger one would not fit into one message, and end the stream that all calls share."""

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ValueError("is not an http URL")
        return url

    @field_validator("source")
    @classmethod
    def _source_name(cls, source: str) -> str:
        if source and not _NAME.fullmatch(source):
            raise ValueError("may hold letters, digits, '_', '.', '-' only")
        return source

    @model_validator(mode="after")
    def _fresh_from_somewhere(self) -> Tool:
        if self.freshness is not Freshness.NONE and not self.source:
            raise ValueError("a tool whose results may be kept must name its source")
        if self.freshness is not Freshness.NONE and not self.code_version:
            raise ValueError("a tool whose results may be kept must state its code_version")
        return self


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tools: dict[str, Tool]


@dataclass(frozen=True, slots=True)
class Tools:
    by_name: Mapping[str, Tool]

    @property
    def bypass_url(self) -> str:
        """The base to which ``/<name>`` is added, where every tool's URL has that shape; else empty."""
        bases = {
            tool.url.removesuffix(f"/{name}") if tool.url.endswith(f"/{name}") else ""
            for name, tool in self.by_name.items()
        }
        return bases.pop() if len(bases) == 1 else ""


def read_tools(path: Path) -> Tools:
    """Raises ToolsFileError."""
    try:
        read = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ToolsFileError(f"{path}: {error}") from error
    problems = list(read.problems)
    if not problems:
        try:
            return _tools(_Document.model_validate(read.value))
        except ValidationError as error:
            problems = [Problem(tuple(e["loc"]), e["msg"]) for e in error.errors()]
        except _BadName as error:
            problems = [Problem(("tools", error.name), "a tool can not be named so")]
    raise ToolsFileError("; ".join(read.told(str(path), problems)))


def _tools(document: _Document) -> Tools:
    """Raises _BadName."""
    for name in document.tools:
        if not _NAME.fullmatch(name):
            raise _BadName(name)
    return Tools(document.tools)
