"""Where bodies are read: small ones at once, large ones beside the event loop.

A body of a million values takes seconds to parse. In a thread the interpreter changes over every few
milliseconds, so that other requests are served meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
T = TypeVar("T")

_READERS = 2
_INLINE_BYTES = 1024 * 1024
_INLINE_VALUES = 10_000


class Desk:
    """A context manager. What waits for a reader is bounded by the requests in flight."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readers.shutdown(wait=True, cancel_futures=True)

    async def read(self, body: bytes, work: Callable[[*Args], T], *args: *Args) -> T:
        """``work(*args)``, which takes as long as the body is large. A client that leaves does not wait for
        it."""
        return await self.read_as(is_light(body), work, *args)

    async def read_as(self, is_light: bool, work: Callable[[*Args], T], *args: *Args) -> T:
        """The same for a body whose weight is known."""
        if is_light:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *args)


def is_light(body: bytes) -> bool:
    """True where reading takes a few milliseconds. A comma or an opening bracket stands before every value
    but the first."""
    if len(body) > _INLINE_BYTES:
        return False
    if len(body) <= _INLINE_VALUES:
        return True
    return len(body) - len(body.translate(None, b",[{")) <= _INLINE_VALUES
