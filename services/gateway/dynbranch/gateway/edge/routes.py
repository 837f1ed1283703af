"""Which handler answers which path. A route ends in ``/…`` when the rest of the path is an argument."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.protocols.errors import ApiError

Handler = Callable[[Exchange, str], Awaitable[None]]
ANY = "*"


class Guard(Enum):
    """What a route asks before its handler runs. OPEN: nothing. TENANT: a known key. SERVED: also a place
    among the exchanges in flight."""

    OPEN = "open"
    TENANT = "tenant"
    SERVED = "served"


@dataclass(frozen=True, slots=True)
class Route:
    """``path`` ending in "/…" matches every longer path."""

    method: str
    path: str
    handler: Handler
    guard: Guard = Guard.SERVED


class Routes:
    """Exact paths come before prefixes, longer prefixes before shorter ones."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        prefixes: dict[str, dict[str, Route]] = {}
        for route in routes:
            table, path = (
                (prefixes, route.path[:-1]) if route.path.endswith("/…") else (self._exact, route.path)
            )
            table.setdefault(path, {})[route.method] = route
        self._prefixes = sorted(prefixes.items(), key=lambda item: -len(item[0]))

    def find(self, method: str, path: str) -> tuple[Route, str]:
        """The route and the rest of the path. Raises ApiError 404 or 405."""
        methods = self._exact.get(path)
        if methods is not None:
            return self._of_method(methods, method, path), ""
        for prefix, methods in self._prefixes:
            if path.startswith(prefix) and len(path) > len(prefix):
                return self._of_method(methods, method, path), path[len(prefix) :]
        raise ApiError(404, f"There is nothing at {path[:200]}.", code="unknown_path")

    @staticmethod
    def _of_method(methods: dict[str, Route], method: str, path: str) -> Route:
        wanted = "GET" if method == "HEAD" else method
        route = methods.get(wanted) or methods.get(ANY)
        if route is None:
            allowed = ", ".join(sorted(methods)).encode()
            raise ApiError(
                405,
                f"{path[:200]} does not take {method}.",
                code="method_not_allowed",
                headers=((b"allow", allowed),),
            )
        return route
