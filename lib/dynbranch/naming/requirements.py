"""What a request must be, before it is named: the types that no engine can do without.

What only some engine may accept is let through, and that engine answers for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import Json, Number, kind_of
from dynbranch.naming.exact import exact_spelling, is_integral
from dynbranch.naming.fields import REQUIRED, Accepts, Field, ObjectTable, Shape


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """Views into one parsed body whose types have been checked."""

    body: dict[str, Json]
    model: str
    messages: list[dict[str, Json]]


def check_request(value: Json, table: ObjectTable) -> CheckedRequest:
    """Raises InvalidRequest; ``facts["param"]`` is the path of the field at fault."""
    if not isinstance(value, dict):
        raise InvalidRequest(
            "invalid_type",
            f"The request body must be an object, but it is {kind_of(value)}.",
            advice="Send a JSON object with 'model' and 'messages'.",
            facts={"param": ""},
        )
    _check_object(value, table, "")
    model, messages = value["model"], value["messages"]
    assert isinstance(model, str)
    assert isinstance(messages, list)
    return CheckedRequest(value, model, [message for message in messages if isinstance(message, dict)])


def _check_object(value: dict[str, Json], table: ObjectTable, prefix: str) -> None:
    for name in table.required:
        if name not in value:
            _missing(table.fields[name], f"{prefix}{name}")
    fields = table.fields
    for name, item in value.items():
        field = fields.get(name)
        if field is None or (item is None and field.accepts not in REQUIRED):
            continue
        if field.accepts is Accepts.ANYTHING and field.table is None:
            continue
        if isinstance(item, str) and item and field.accepts in _TAKE_TEXT:
            continue
        path = f"{prefix}{name}"
        _check_value(item, field.accepts, path)
        if field.table is not None and field.shape is Shape.OBJECT and isinstance(item, dict):
            _check_object(item, field.table, f"{path}.")
        elif field.table is not None and isinstance(item, list):
            for index, element in enumerate(item):
                if isinstance(element, dict):
                    _check_object(element, field.table, f"{path}[{index}].")


def _check_value(value: Json, accepts: Accepts, path: str) -> None:
    types = _TYPES.get(accepts)
    if types is not None:
        if not isinstance(value, types) or (value == "" and accepts in REQUIRED):
            _wrong_type(value, accepts, path)
        return
    match accepts:
        case Accepts.ANYTHING:
            pass
        case Accepts.INTEGER:
            if not isinstance(value, Number) or not is_integral(value.text):
                _wrong_type(value, accepts, path)
        case Accepts.COUNT:
            _check_count(value, path)
        case Accepts.TEXT_OR_TEXTS:
            _check_texts(value, path)
        case Accepts.OBJECTS | Accepts.REQUIRED_OBJECTS:
            _check_objects(value, accepts, path)
        case Accepts.CONTENT:
            _check_content(value, path)
        case _:
            raise AssertionError(f"{accepts} is not checked")


_TAKE_TEXT: Final = (Accepts.REQUIRED_TEXT, Accepts.CONTENT, Accepts.TEXT, Accepts.TEXT_OR_OBJECT)
"""Most of all values are texts: these take any that is not empty."""

_TYPES: Final[dict[Accepts, tuple[type, ...]]] = {
    Accepts.NUMBER: (Number,),
    Accepts.BOOLEAN: (bool,),
    Accepts.OBJECT: (dict,),
    Accepts.TEXT: (str,),
    Accepts.TEXT_OR_OBJECT: (str, dict),
    Accepts.REQUIRED_TEXT: (str,),
}


def _check_count(value: Json, path: str) -> None:
    if not isinstance(value, Number) or not is_integral(value.text):
        _wrong_type(value, Accepts.COUNT, path)
    if value.text.startswith("-") or exact_spelling(value.text) == "0e0":
        raise InvalidRequest(
            "invalid_value",
            f"Invalid value for '{path}': expected {Accepts.COUNT.value}, but got {value.text[:40]} instead.",
            facts={"param": path},
        )


def _check_texts(value: Json, path: str) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, str):
                _wrong_type(item, Accepts.TEXT, f"{path}[{index}]")
    elif not isinstance(value, str):
        _wrong_type(value, Accepts.TEXT_OR_TEXTS, path)


def _check_objects(value: Json, accepts: Accepts, path: str) -> None:
    if not isinstance(value, list):
        _wrong_type(value, accepts, path)
    if not value and accepts in REQUIRED:
        raise InvalidRequest(
            "invalid_value",
            f"Invalid '{path}': expected {accepts.value}, but the array is empty.",
            facts={"param": path},
        )
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            _wrong_type(item, Accepts.OBJECT, f"{path}[{index}]")


def _check_content(value: Json, path: str) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        _wrong_type(value, Accepts.CONTENT, path)
    for index, part in enumerate(value):
        # Some engines take plain strings among the parts.
        if not isinstance(part, str | dict):
            _wrong_type(part, Accepts.OBJECT, f"{path}[{index}]")
        if isinstance(part, dict) and part.get("type") == "text" and not isinstance(part.get("text"), str):
            _wrong_type(part.get("text"), Accepts.TEXT, f"{path}[{index}].text")


def _missing(field: Field, path: str) -> NoReturn:
    raise InvalidRequest(
        "missing_parameter",
        f"Missing required parameter: '{path}'.",
        advice=f"Add '{path}': {field.accepts.value}.",
        facts={"param": path},
    )


def _wrong_type(value: Json, accepts: Accepts, path: str) -> NoReturn:
    got = "an empty string" if value == "" else kind_of(value)
    raise InvalidRequest(
        "invalid_type",
        f"Invalid type for '{path}': expected {accepts.value}, but got {got} instead.",
        advice=f"Send {accepts.value}.",
        facts={"param": path},
    )
