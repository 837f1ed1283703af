"""What became of a call: a domain error that the service meant, or Unreachable.

A status with an ErrorDetail is an answer. Every other failure (refused, lost, cancelled by the peer, deadline
passed, a crash over there, an answer that can not be read) is Unreachable: nothing is known of what happened
there. A local cancellation stays ``asyncio.CancelledError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from dynbranch.clients.ports import Unreachable
from dynbranch.domain.errors import DomainError, InvalidRequest
from dynbranch.runtime.error_status import DETAILS_KEY, error_of, error_of_call
from dynbranch.v1 import shared_pb2
from google.protobuf.message import DecodeError
from google.rpc import status_pb2  # type: ignore[import-untyped]


def meaning(error: grpc.aio.AioRpcError) -> DomainError | Unreachable:
    """The failure of a call, in the caller's terms."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                meant = error_of(status_pb2.Status.FromString(value))
            except DecodeError:
                break
            if meant is not None:
                return meant
    return Unreachable(f"{error.code().name.lower()}: {error.details()}")


def meaning_of(failed: shared_pb2.CallError) -> DomainError | Unreachable:
    """The failure of a call that shares its stream, in the caller's terms."""
    return error_of_call(failed) or Unreachable(f"the peer failed: {failed.message}")


@contextmanager
def meant() -> Iterator[None]:
    """Raises what a failed call means instead of gRPC's own error."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise meaning(error) from error
    except grpc.aio.UsageError as error:
        raise Unreachable("this client is closed") from error
    except asyncio.CancelledError:
        # gRPC cancels the calls of a closed channel as if their tasks had been cancelled.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Unreachable("this client was closed") from None


@contextmanager
def readable() -> Iterator[None]:
    """Decoding an answer: a malformed one is the peer's fault, not the caller's request."""
    try:
        yield
    except InvalidRequest as error:
        raise Unreachable(f"the answer can not be read: {error}") from error
