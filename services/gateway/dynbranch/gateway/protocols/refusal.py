"""What a request asks for and can not be served, refused with the path of the field at fault."""

from __future__ import annotations

from collections.abc import Iterator, Set

from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import Json, Number, kind_of

_UNKNOWN = "it is not known here"


def unserved(path: str, why: str) -> InvalidRequest:
    """A field or a block of the protocol that no engine behind this gateway could heed."""
    return InvalidRequest(
        "unsupported_parameter", f"'{path}' is not served here: {why}.", facts={"param": path}
    )


def wrong_type(path: str, wanted: str, value: Json) -> InvalidRequest:
    return InvalidRequest(
        "invalid_type",
        f"Invalid type for '{path}': expected {wanted}, but got {kind_of(value)} instead.",
        facts={"param": path},
    )


def wrong_value(path: str, why: str) -> InvalidRequest:
    return InvalidRequest("invalid_value", f"Invalid value for '{path}': {why}.", facts={"param": path})


def missing(path: str) -> InvalidRequest:
    return InvalidRequest(
        "missing_parameter", f"Missing required parameter: '{path}'.", facts={"param": path}
    )


def text_at(holder: dict[str, Json], key: str, path: str) -> str:
    """The text that must stand at a key. Raises InvalidRequest."""
    value = holder.get(key)
    if value is None:
        raise missing(f"{path}.{key}" if path else key)
    if not isinstance(value, str):
        raise wrong_type(f"{path}.{key}" if path else key, "a string", value)
    return value


def objects_in(values: list[Json], path: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """The path and the members of each; all must be objects. Raises InvalidRequest at the first that is
    none."""
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise wrong_type(f"{path}[{index}]", "an object", value)
        yield f"{path}[{index}]", value


def is_positive(value: Json) -> bool:
    """Whether it is an integer of at least 1, of however many digits."""
    return isinstance(value, Number) and value.text.isdigit() and value.text.strip("0") != ""


def beyond(holder: dict[str, Json], known: Set[str]) -> dict[str, Json]:
    """The members that are not known, for the engine to judge. Null says nothing."""
    if holder.keys() <= known:
        return {}
    return {key: value for key, value in holder.items() if key not in known and value is not None}


def only(holder: dict[str, Json], known: Set[str], path: str) -> None:
    """Nothing else may stand here. Raises InvalidRequest."""
    for key in beyond(holder, known):
        raise unserved(f"{path}.{key[:80]}", _UNKNOWN)


def unclaimed(holder: dict[str, Json], known: Set[str], ours: Set[str], path: str) -> dict[str, Json]:
    """Unknown members go on to the engine, unless they would say something else there: ``ours`` are what
    stands in the place that they go to. Raises InvalidRequest."""
    members = beyond(holder, known)
    for key in members.keys() & ours if members else ():
        raise unserved(f"{path}.{key}", _UNKNOWN)
    return members
