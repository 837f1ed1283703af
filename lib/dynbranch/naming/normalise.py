"""A request as the engine will receive it, in one spelling per meaning.

``canonical`` is what a reuse name covers: the fields that determine the result, protocol objects with their
keys in order, free-form JSON as it came. Two requests have equal canonical bytes only if the engine treats
them alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dynbranch.domain.ids import Digest
from dynbranch.domain.reuse import Fingerprint
from dynbranch.naming.content import called_digests, text_digest, text_of
from dynbranch.naming.document import Document, Json, Number, emit
from dynbranch.naming.equivalences import in_one_spelling
from dynbranch.naming.exact import exact_spelling
from dynbranch.naming.fields import (
    ALIASED_BY_FINGERPRINT,
    CHAT,
    KNOWN_PARTS,
    PART,
    Field,
    FieldClass,
    ObjectTable,
    Shape,
)
from dynbranch.naming.requirements import check_request
from dynbranch.naming.verdict import TOOL_VERDICT, ReuseVerdict, judge

_CHAT_FORM: Final = b"chat_completions/1\n"
_TOOL_FORM: Final = b"tool/1\n"
_STREAMED: Final = b',"stream":true,"stream_options":{"include_usage":true}}'


@dataclass(frozen=True, slots=True)
class ClassifiedField:
    """One field of a request, for people. ``path`` reads like ``messages[0].cache_control``."""

    path: str
    field_class: FieldClass
    known: bool


@dataclass(frozen=True, slots=True)
class NormalisedRequest:
    """``model`` is as asked for, for a tool call the tool's name; ``served_model`` the one it is named under.
    ``equivalences``: what is named in one spelling, as it renders alike.

    What only a name needs is made at each call, since most sampled requests are never named.
    """

    document: Document
    table: ObjectTable | None
    model: str
    streaming: bool
    include_usage: bool
    reuse: ReuseVerdict
    served_model: str | None = None
    equivalences: frozenset[str] = frozenset()

    @property
    def canonical(self) -> bytes:
        """What gets named: what is alike made equal, in one spelling."""
        body = self.document.value
        if self.table is None or not isinstance(body, dict):
            return _TOOL_FORM + emit([self.model, body]).encode()
        named = dict(body)
        if self.served_model is not None:
            named[ALIASED_BY_FINGERPRINT] = self.served_model
        if self.equivalences:
            named["messages"] = in_one_spelling(body, self._messages, self.equivalences)
        return _CHAT_FORM + emit(_in_one_order(named, self.table)).encode()

    @property
    def turn(self) -> int:
        """How many answers of the model the conversation holds already."""
        return sum(message.get("role") == "assistant" for message in self._messages)

    @property
    def input_digests(self) -> tuple[Digest, ...]:
        """Of what earlier stages may have produced: assistant texts and calls, tool results."""
        return _input_digests(self._messages)

    @property
    def _messages(self) -> list[dict[str, Json]]:
        body = self.document.value
        messages = body.get("messages") if self.table is not None and isinstance(body, dict) else None
        return [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []

    @property
    def engine_body(self) -> bytes:
        """What is sent: the body as it came, but streaming with usage at the end where the engine can stream.
        Made anew at each call, since a hit never needs it."""
        body = self.document.value
        if self.table is None or not isinstance(body, dict):
            return self.document.source
        return _engine_body(self.document, body)

    @property
    def fields(self) -> tuple[ClassifiedField, ...]:
        """Each field's class, for explain."""
        body = self.document.value
        if self.table is None or not isinstance(body, dict):
            return (ClassifiedField("", FieldClass.DETERMINES, known=True),)
        return tuple(_classified(body, self.table, ""))


def model_of(document: Document) -> str:
    """The model asked for, which chooses the pool before anything is named. Raises InvalidRequest."""
    match document.value:
        case {"model": str() as model} if model:
            return model
        case _:
            return check_request(document.value, CHAT).model


def normalise_chat(
    document: Document,
    equivalences: frozenset[str] = frozenset(),
    *,
    served_model: str | None = None,
    fingerprint: Fingerprint | None = None,
) -> NormalisedRequest:
    """Normalise a Chat Completions request. Raises InvalidRequest with the field's path in
    ``facts["param"]``.

    ``served_model`` is the id under which the request is named whatever alias it used. ``fingerprint`` tells
    the sampling defaults that hold where the request is silent (facts ``default.temperature`` and
    ``default.top_k``).
    """
    request = check_request(document.value, CHAT)
    return NormalisedRequest(
        document=document,
        table=CHAT,
        model=request.model,
        streaming=request.body.get("stream") is True,
        include_usage=_asks_for_usage(request.body),
        reuse=judge(request.body, fingerprint),
        served_model=served_model,
        equivalences=equivalences,
    )


def normalise_tool(name: str, document: Document) -> NormalisedRequest:
    """Normalise a tool call. Its input is free-form JSON, and goes to the backend as it came."""
    return NormalisedRequest(
        document=document,
        table=None,
        model=name,
        streaming=False,
        include_usage=False,
        reuse=TOOL_VERDICT,
    )


def _in_one_order(value: dict[str, Json], table: ObjectTable) -> dict[str, Json]:
    """The determining fields, keys in order; where a template may print unknown fields, these last and as
    they came."""
    known = table.fields
    keys = [key for key in value if key not in known or known[key].field_class is FieldClass.DETERMINES]
    if table.prints_unknown:
        keys.sort(key=lambda key: (0, key) if key in known else (1, ""))
    else:
        keys.sort()
    # A text is its own one form, whatever its field.
    return {
        key: item if isinstance(item := value[key], str) else _one_form(item, known.get(key)) for key in keys
    }


def _one_form(value: Json, field: Field | None) -> Json:
    if field is None or field.shape is Shape.FREE_FORM:
        return value
    match value:
        case Number(text) if field.shape is Shape.NUMBER:
            return Number(exact_spelling(text))
        case dict() if field.shape is Shape.OBJECT and field.table is not None:
            return _in_one_order(value, field.table)
        case list() if field.shape is Shape.OBJECTS and field.table is not None:
            table = field.table
            return [_in_one_order(i, table) if isinstance(i, dict) else i for i in value]
        case list() if field.shape is Shape.CONTENT:
            return [_part(part) for part in value]
        case _:
            return value


def _part(part: Json) -> Json:
    if isinstance(part, dict) and _is_known_part(part):
        return _in_one_order(part, PART)
    return part


def _is_known_part(part: dict[str, Json]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in KNOWN_PARTS


def _engine_body(document: Document, body: dict[str, Json]) -> bytes:
    """The request with streaming on and usage at its end: every generation is run as a stream."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if body.get("stream") is True and options.get("include_usage") is True:
        return document.source
    if body and "stream" not in body and "stream_options" not in body:
        return document.source.rstrip()[:-1] + _STREAMED
    changed = dict(body)
    changed["stream"] = True
    changed["stream_options"] = {**options, "include_usage": True}
    return emit(changed).encode()


def _asks_for_usage(body: dict[str, Json]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _input_digests(messages: list[dict[str, Json]]) -> tuple[Digest, ...]:
    digests: dict[Digest, None] = {}
    for message in messages:
        role = message.get("role")
        if role not in ("assistant", "tool"):
            continue
        text = text_of(message.get("content"))
        if text:
            digests[text_digest(text)] = None
        if role == "assistant":
            digests.update(dict.fromkeys(called_digests(message.get("tool_calls"))))
    return tuple(digests)


def _classified(value: dict[str, Json], table: ObjectTable, prefix: str) -> Iterator[ClassifiedField]:
    """Every field of the body; inside it the ones that a person would not expect: unknown or not
    determining."""
    for key, item in value.items():
        field = table.fields.get(key)
        field_class = FieldClass.DETERMINES if field is None else field.field_class
        path = f"{prefix}{key}"
        if not prefix or field is None or field_class is not FieldClass.DETERMINES:
            yield ClassifiedField(path, field_class, known=field is not None)
        if field is not None:
            yield from _classified_inside(item, field, path)


def _classified_inside(value: Json, field: Field, path: str) -> Iterator[ClassifiedField]:
    table = PART if field.shape is Shape.CONTENT else field.table
    if table is None:
        return
    if isinstance(value, dict):
        yield from _classified(value, table, f"{path}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict) and (table is not PART or _is_known_part(item)):
                yield from _classified(item, table, f"{path}[{index}].")
