"""Who a key belongs to. Without a file of keys there is one tenant, and keys mean nothing here."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from dynbranch.gateway.protocols.errors import ApiError
from dynbranch.runtime.config import ConfigError

DEFAULT_TENANT = "default"
_HASHED = "sha256:"


class Tenants:
    """Keys are kept as their SHA-256 only. ``operators``: tenants that may write records and see every
    entry; without keys everyone may."""

    def __init__(
        self, tenant_by_key: Mapping[str, str] | None = None, *, operators: Collection[str] = ()
    ) -> None:
        self._operators = frozenset(operators)
        self._tenants = (
            None if tenant_by_key is None else {_digest_of(key): name for key, name in tenant_by_key.items()}
        )

    @property
    def has_keys(self) -> bool:
        return self._tenants is not None

    def of(self, headers: Mapping[str, str]) -> str:
        """The tenant of a request. Raises ApiError (401) for a key that is not known."""
        if self._tenants is None:
            return DEFAULT_TENANT
        tenant = self._tenants.get(hashlib.sha256(_key_in(headers).encode()).hexdigest())
        if tenant is None:
            raise ApiError(401, "The API key is not known here.", code="invalid_api_key")
        return tenant

    def operator(self, headers: Mapping[str, str]) -> str:
        """The tenant of a request that only an operator may make. Raises ApiError (401, 403)."""
        tenant = self.of(headers)
        if self.has_keys and tenant not in self._operators:
            raise ApiError(
                403,
                f"The tenant {tenant!r} is not an operator. Use an operator's key, or add the tenant to "
                "'operators' in the gateway's tenants file.",
                code="not_an_operator",
            )
        return tenant


def _key_in(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _digest_of(key: str) -> str:
    if key.startswith(_HASHED):
        return key.removeprefix(_HASHED).lower()
    return hashlib.sha256(key.encode()).hexdigest()


def load_tenants(path: str) -> Tenants:
    """Read a TOML file with a table ``[keys]`` of ``"key" = "tenant"``; a key may be given as
    ``sha256:HEX``. Before it may stand ``operators = ["tenant"]``. Raises ConfigError."""
    if not path:
        return Tenants()
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise ConfigError(f"DYNBRANCH_GATEWAY_TENANTS: {path}: {problem}") from problem
    keys, operators = document.pop("keys", {}), document.pop("operators", [])
    if document:
        raise ConfigError(f"DYNBRANCH_GATEWAY_TENANTS: {path}: {min(document)!r} is not known here")
    if not isinstance(keys, dict) or not all(isinstance(name, str) and name for name in keys.values()):
        raise ConfigError(
            f'DYNBRANCH_GATEWAY_TENANTS: {path}: [keys] must map each key to a tenant, "key" = "name"; '
            "'operators' stands before it"
        )
    if not isinstance(operators, list) or not all(name in keys.values() for name in operators):
        raise ConfigError(
            f"DYNBRANCH_GATEWAY_TENANTS: {path}: operators must be a list of tenants that [keys] names"
        )
    return Tenants(keys, operators=operators)
