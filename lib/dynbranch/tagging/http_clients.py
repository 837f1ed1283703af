"""The HTTP clients under the SDKs: what is added to their requests, and what is read of their answers.

``httpx2`` and ``httpx`` clients have the same event hooks, which run for every request that goes out, a
redirected one included. Neither is imported here unless all clients of the process are meant.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from dynbranch.tagging.outcomes import Outcomes, outcome
from dynbranch.tagging.patches import Patches
from dynbranch.tagging.tags import Tags, current, current_workflow

_HOLDERS: Final = (
    "_client",
    "_async_client",
    "root_client",
    "root_async_client",
    "client",
    "async_client",
)
"""Where SDKs keep their HTTP client, and frameworks their SDK's client."""

_DEEPEST: Final = 4
_PACKAGES: Final = ("httpx2", "httpx")
_PORTS: Final = {"http": 80, "https": 443}

Origin = tuple[str, str, int]


def origin_of(url: str) -> Origin:
    """Scheme, host and port. Raises ValueError where it has none of them."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"a gateway's address is http://host:port, not {url!r}")
    return parts.scheme, parts.hostname.lower().rstrip("."), parts.port or _PORTS[parts.scheme]


class Tagger:
    """Adds tags to requests for some gateways, and to no others. A tag that a request has is left alone."""

    def __init__(self, gateways: Iterable[str], otherwise: Tags) -> None:
        self._gateways = frozenset(origin_of(url) for url in gateways)
        self._otherwise = otherwise
        self._key = f"dynbranch.{id(self)}"
        self.outcomes = Outcomes()

    def request(self, request: Any) -> None:
        # A redirected request has the headers and the extensions of the one before it.
        for name in request.extensions.pop(self._key, ()):
            request.headers.pop(name, None)
        if not self._is_ours(request):
            return
        added = []
        for name, text in current(self._otherwise).headers():
            if name not in request.headers:
                request.headers[name] = text
                added.append(name)
        request.extensions[self._key] = tuple(added)

    def response(self, response: Any) -> None:
        if not self._is_ours(response.request):
            return
        seen = outcome(response)
        if seen is None:
            return
        self.outcomes.note(seen)
        workflow = current_workflow()
        if workflow is not None:
            workflow.outcomes.note(seen)

    async def request_async(self, request: Any) -> None:
        self.request(request)

    async def response_async(self, response: Any) -> None:
        self.response(response)

    def _is_ours(self, request: Any) -> bool:
        try:
            return origin_of(str(request.url)) in self._gateways
        except ValueError:
            return False


class Hooked:
    """The clients that a tagger is hooked into."""

    def __init__(self, tagger: Tagger) -> None:
        self._tagger = tagger
        self._lock = Lock()
        # The bound methods are kept: hooks are told apart by identity.
        self._sync = (tagger.request, tagger.response)
        self._async = (tagger.request_async, tagger.response_async)
        self._clients: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
        self._closed = False

    def add(self, client: Any) -> None:
        """Once for each client; again where somebody has put other hooks in place of all."""
        request, response = self._hooks_for(client)
        with self._lock:
            if self._closed:
                return
            self._clients[client] = None
            for kind, hook in (("request", request), ("response", response)):
                hooks = client.event_hooks[kind]
                if not any(known is hook for known in hooks):
                    hooks.append(hook)

    def remove_all(self) -> None:
        with self._lock:
            self._closed = True
            for client in list(self._clients):
                ours = self._hooks_for(client)
                for kind in ("request", "response"):
                    hooks = client.event_hooks[kind]
                    # In place of the list: a request that is on its way goes through the old one.
                    client.event_hooks[kind] = [hook for hook in hooks if hook not in ours]
            self._clients.clear()

    def _hooks_for(self, client: Any) -> tuple[Any, Any]:
        return self._async if _is_async(client) else self._sync


def http_clients(target: Any) -> list[Any]:
    """The HTTP clients in an SDK's client, in a framework's model, or the one that it is. Raises TypeError
    where there is none."""
    found = list(_within(target, _DEEPEST, set()))
    if not found:
        raise TypeError(f"a {type(target).__name__} holds no client of httpx2 or httpx")
    return found


def _within(target: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if target is None or id(target) in seen or depth < 0:
        return
    seen.add(id(target))
    if _is_http_client(target):
        yield target
        return
    for name in _HOLDERS:
        yield from _within(getattr(target, name, None), depth - 1, seen)


def _is_http_client(target: Any) -> bool:
    hooks = getattr(target, "event_hooks", None)
    return isinstance(hooks, dict) and callable(getattr(target, "send", None))


def _is_async(client: Any) -> bool:
    return hasattr(client, "aclose")


def hook_every_client(hooked: Hooked, patches: Patches) -> None:
    """All clients of the installed packages, those too that are made later: each is hooked when it sends."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        module = importlib.import_module(package)
        patches.put(module.Client, "send", lambda original: _sending(original, hooked))
        patches.put(module.AsyncClient, "send", lambda original: _sending_async(original, hooked))


def _sending(original: Any, hooked: Hooked) -> Any:
    @functools.wraps(original)
    def send(client: Any, *args: Any, **kwargs: Any) -> Any:
        hooked.add(client)
        return original(client, *args, **kwargs)

    return send


def _sending_async(original: Any, hooked: Hooked) -> Any:
    @functools.wraps(original)
    async def send(client: Any, *args: Any, **kwargs: Any) -> Any:
        hooked.add(client)
        return await original(client, *args, **kwargs)

    return send
