"""The tools of a Responses request as functions of Chat Completions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dynbranch.gateway.protocols.refusal import (
    beyond,
    missing,
    objects_in,
    only,
    text_at,
    unserved,
    wrong_type,
    wrong_value,
)
from dynbranch.naming.document import Json

FUNCTION_MEMBERS: Final = frozenset(
    {"type", "name", "description", "parameters", "strict", "async", "allowed_callers", "defer_loading"}
)
NAMESPACE_MEMBERS: Final = frozenset({"type", "name", "description", "tools"})
CHOICE_MEMBERS: Final = frozenset({"type", "name", "namespace"})
_SEARCHES: Final = ("web_search", "web_search_preview")


@dataclass(slots=True)
class Offered:
    """``functions`` as the engine is told them; ``namespaced`` tells, by a function's name there, its
    namespace and its name in it; ``left_out`` are kinds of tools that no engine has, and that the model may
    do without."""

    functions: list[Json] = field(default_factory=list)
    namespaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def flat_name(namespace: str, name: str) -> str:
    """The name of a tool of a namespace in Chat Completions, which has none."""
    return f"{namespace}__{name}" if namespace else name


def offered_tools(tools: Json) -> Offered:
    """Raises InvalidRequest."""
    offered = Offered()
    if tools is None:
        return offered
    if not isinstance(tools, list):
        raise wrong_type("tools", "an array of tools", tools)
    for index, tool in enumerate(tools):
        _add(offered, tool, f"tools[{index}]")
    _check_names(offered)
    return offered


def chosen_tool(choice: Json) -> Json:
    """``tool_choice`` as Chat Completions has it. Raises InvalidRequest."""
    match choice:
        case None | "auto" | "none" | "required":
            return choice
        case str():
            raise wrong_value("tool_choice", f"{choice[:80]!r} is none of auto, none, required")
        case dict():
            return _chosen_function(choice)
        case _:
            raise wrong_type("tool_choice", "a string or an object", choice)


def _chosen_function(choice: dict[str, Json]) -> Json:
    kind = text_at(choice, "type", "tool_choice")
    if kind != "function":
        raise unserved("tool_choice.type", f"choices of type {kind[:80]!r} are not known here")
    only(choice, CHOICE_MEMBERS, "tool_choice")
    space = text_at(choice, "namespace", "tool_choice") if choice.get("namespace") is not None else ""
    name = flat_name(space, text_at(choice, "name", "tool_choice"))
    return {"type": "function", "function": {"name": name}}


def _add(offered: Offered, tool: Json, path: str) -> None:
    if not isinstance(tool, dict):
        raise wrong_type(path, "an object", tool)
    match tool.get("type"):
        case "function":
            offered.functions.append(_function(tool, path))
        case "namespace":
            _add_namespace(offered, tool, path)
        case str() as kind if kind.startswith(_SEARCHES):
            # Harnesses offer it to every model; one that can not search does without.
            offered.left_out.append(kind[:80])
        case str() as kind:
            raise unserved(f"{path}.type", f"tools of type {kind[:80]!r} do not run here")
        case None:
            raise missing(f"{path}.type")
        case other:
            raise wrong_type(f"{path}.type", "a string", other)


def _add_namespace(offered: Offered, tool: dict[str, Json], path: str) -> None:
    only(tool, NAMESPACE_MEMBERS, path)
    space, inner = text_at(tool, "name", path), tool.get("tools")
    about = text_at(tool, "description", path) if tool.get("description") is not None else ""
    if not isinstance(inner, list):
        raise (missing(f"{path}.tools") if inner is None else wrong_type(f"{path}.tools", "an array", inner))
    for at, held in objects_in(inner, f"{path}.tools"):
        if held.get("type") != "function":
            raise unserved(f"{at}.type", "only functions can be offered")
        offered.functions.append(_function(held, at, space, about))
        name = text_at(held, "name", at)
        offered.namespaced[flat_name(space, name)] = (space, name)


def _function(tool: dict[str, Json], path: str, space: str = "", about: str = "") -> Json:
    """``about`` says what a namespace is for, which the model is to know with each tool of it."""
    if tool.get("defer_loading") not in (None, False):
        raise unserved(f"{path}.defer_loading", "every tool is told to the model")
    if tool.get("allowed_callers") not in (None, ["direct"]):
        raise unserved(f"{path}.allowed_callers", "calls are made by the model alone")
    if tool.get("async") not in (None, False):
        raise unserved(f"{path}.async", "the model waits for every result")
    function: dict[str, Json] = {"name": flat_name(space, text_at(tool, "name", path))}
    described = text_at(tool, "description", path) if tool.get("description") is not None else ""
    if about or described:
        function["description"] = f"{about}\n\n{described}" if about and described else about or described
    schema = tool.get("parameters")
    if schema is not None:
        if not isinstance(schema, dict):
            raise wrong_type(f"{path}.parameters", "an object", schema)
        function["parameters"] = schema
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": {**function, **beyond(tool, FUNCTION_MEMBERS)}}


def _check_names(offered: Offered) -> None:
    seen: set[str] = set()
    for function in offered.functions:
        match function:
            case {"function": {"name": str() as name}}:
                if name in seen:
                    raise wrong_value("tools", f"two tools have the name {name[:80]!r}")
                seen.add(name)
            case _:
                continue
