"""An OTLP/gRPC receiver that writes spans to a file, as OTLP JSON lines, and keeps them to look at.

Each line is one export request in the JSON encoding of the OTLP specification: ids in hex, enumerations as
numbers.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

MAX_SPANS_KEPT = 200_000
MAX_MESSAGE_BYTES = 64 << 20
_ID_FIELDS = ("traceId", "spanId", "parentSpanId")
_ERROR = 2
"""STATUS_CODE_ERROR."""


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """One finished span. Ids are hex, ``parent_id`` is empty for a root, times are Unix nanoseconds."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...] = ()
    events: tuple[str, ...] = ()
    failed: bool = False

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


class TraceReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens from ``start`` until ``close``; the file has every span that was acknowledged."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._spans: deque[SeenSpan] = deque(maxlen=MAX_SPANS_KEPT)
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self.endpoint = ""
        """What OTEL_EXPORTER_OTLP_ENDPOINT is to be, once started."""

    def start(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=2, thread_name_prefix="otlp"),
            options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)],
        )
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
            self, self._server
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.endpoint = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(grace=2.0).wait()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        document = otlp_json(request)
        spans = list(spans_of(document))
        with self._changed:
            if self._file is not None:
                self._file.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
                self._file.flush()
            self._spans.extend(spans)
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self) -> list[SeenSpan]:
        with self._changed:
            return list(self._spans)

    def wait_for(self, count: int, *, name: str, timeout_s: float) -> list[SeenSpan]:
        """The spans of that name, once there are ``count`` of them. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._named(name)) >= count, timeout_s):
                raise TimeoutError(f"{len(self._named(name))} spans {name!r} arrived, not {count}")
            return self._named(name)

    def _named(self, name: str) -> list[SeenSpan]:
        return [span for span in self._spans if span.name == name]


def otlp_json(request: trace_service_pb2.ExportTraceServiceRequest) -> dict[str, Any]:
    """The OTLP specification's JSON, which differs from protobuf's own in the ids and the enumerations."""
    document: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for span in _raw_spans(document):
        for holder in (span, *span.get("links", [])):
            for field in _ID_FIELDS:
                if field in holder:
                    holder[field] = base64.b64decode(holder[field]).hex()
    return document


def spans_of(document: Mapping[str, Any]) -> Iterator[SeenSpan]:
    for resource in document.get("resourceSpans", []):
        service = _attributes(resource.get("resource", {}).get("attributes", [])).get("service.name", "")
        for scope in resource.get("scopeSpans", []):
            for span in scope.get("spans", []):
                yield _seen(str(service), span)


def read_spans(path: Path) -> list[SeenSpan]:
    """Every span of a file. Raises ValueError for a line that is not OTLP JSON."""
    with path.open(encoding="utf-8") as file:
        return [span for line in file for span in spans_of(json.loads(line))]


def _raw_spans(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in document.get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            yield from scope.get("spans", [])


def _seen(service: str, span: Mapping[str, Any]) -> SeenSpan:
    return SeenSpan(
        service=service,
        name=span.get("name", ""),
        trace_id=span.get("traceId", ""),
        span_id=span.get("spanId", ""),
        parent_id=span.get("parentSpanId", ""),
        kind=span.get("kind", 0),
        start_ns=int(span.get("startTimeUnixNano", 0)),
        end_ns=int(span.get("endTimeUnixNano", 0)),
        attributes=_attributes(span.get("attributes", [])),
        links=tuple((link.get("traceId", ""), link.get("spanId", "")) for link in span.get("links", [])),
        events=tuple(event.get("name", "") for event in span.get("events", [])),
        failed=span.get("status", {}).get("code", 0) == _ERROR,
    )


def _attributes(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair.get("value", {})) for pair in pairs}


def _value(value: Mapping[str, Any]) -> Any:
    match value:
        case {"intValue": number}:
            return int(number)
        case {"arrayValue": array}:
            return [_value(item) for item in array.get("values", [])]
        case {"kvlistValue": pairs}:
            return _attributes(pairs.get("values", []))
        case _:
            return next(iter(value.values()), None)
