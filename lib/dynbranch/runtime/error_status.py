"""Domain errors as a gRPC status with a typed detail, and back."""

from __future__ import annotations

from dynbranch.domain.errors import Conflict, DomainError, InvalidRequest, NotFound, NotReady, StoreFailed
from dynbranch.v1 import shared_pb2
from google.protobuf.any_pb2 import Any
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]

DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata that carries a serialised google.rpc.Status."""

_CODES: tuple[tuple[type[DomainError], int], ...] = (
    (NotFound, code_pb2.NOT_FOUND),
    (NotReady, code_pb2.UNAVAILABLE),
    (Conflict, code_pb2.FAILED_PRECONDITION),
    (InvalidRequest, code_pb2.INVALID_ARGUMENT),
    (StoreFailed, code_pb2.INTERNAL),
)


def status_of(error: DomainError) -> status_pb2.Status:
    """The status that a service answers with."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), code_pb2.UNKNOWN)
    detail = Any()
    detail.Pack(shared_pb2.ErrorDetail(reason=error.reason, advice=error.advice, facts=error.facts))
    return status_pb2.Status(code=code, message=error.message, details=[detail])


def call_error_of(error: DomainError | None) -> shared_pb2.CallError:
    """What a failed call that shares its stream is answered with. None: a bug, of which nothing is told."""
    if error is None:
        return shared_pb2.CallError(code=code_pb2.INTERNAL, message="the service failed; its log says why")
    code = next((code for kind, code in _CODES if isinstance(error, kind)), code_pb2.UNKNOWN)
    detail = shared_pb2.ErrorDetail(reason=error.reason, advice=error.advice, facts=error.facts)
    return shared_pb2.CallError(code=code, message=error.message, detail=detail)


def error_of_call(failed: shared_pb2.CallError) -> DomainError | None:
    """The domain error that a shared stream's answer carries; None when the callee meant none."""
    kind = next((kind for kind, code in _CODES if code == failed.code), None)
    if kind is None or not failed.HasField("detail"):
        return None
    detail = failed.detail
    return kind(detail.reason, failed.message, advice=detail.advice, facts=dict(detail.facts))


def error_of(status: status_pb2.Status) -> DomainError | None:
    """The domain error that a status carries; None when it carries no ErrorDetail or an unknown code."""
    kind = next((kind for kind, code in _CODES if code == status.code), None)
    if kind is None:
        return None
    for packed in status.details:
        detail = shared_pb2.ErrorDetail()
        if packed.Unpack(detail):
            return kind(detail.reason, status.message, advice=detail.advice, facts=dict(detail.facts))
    return None
