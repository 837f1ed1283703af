"""Settings of the service. Environment: ``DYNBRANCH_CSL_<FIELD>``; file: table ``[csl]``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from dynbranch.csl.core.limits import Limits
from dynbranch.csl.rocks import Sizes
from pydantic import Field
from pydantic_settings import BaseSettings

_DEFAULT = Limits()


class Binding(StrEnum):
    ROCKSDICT = "rocksdict"
    ROCKSDB_PY = "rocksdb-py"


class CslSettings(BaseSettings):
    listen: str = Field("127.0.0.1:7610", description="host:port to serve gRPC on; port 0 takes a free one")
    data_dir: Path = Field(Path("dynbranch-csl"), description="directory of the store; made when absent")
    binding: Binding = Field(
        Binding.ROCKSDICT, description="the library that reaches RocksDB: rocksdict or rocksdb-py"
    )
    accept_process_crash_durability: bool = Field(
        False, description="with rocksdb-py: what was acknowledged need not survive a power loss"
    )
    max_entries: int = Field(_DEFAULT.max_entries, ge=1, description="entries kept; the least worth go first")
    max_stored_bytes: int = Field(_DEFAULT.max_stored_bytes, ge=1, description="bytes of all payloads kept")
    max_payload_bytes: int = Field(
        _DEFAULT.max_payload_bytes,
        ge=1,
        le=48 << 20,
        description="bytes of one result; larger ones are not stored",
    )
    lease_ttl_ms: int = Field(
        _DEFAULT.lease_ttl_ms, ge=100, le=_DEFAULT.max_lease_ttl_ms, description="life of an unrenewed lease"
    )
    entry_ttl_s: int = Field(
        _DEFAULT.entry_ttl_ms // 1000, ge=0, description="seconds that an entry is kept; 0: whatever its age"
    )
    max_history: int = Field(
        _DEFAULT.max_history, ge=0, description="rows kept to answer why an entry was invalidated"
    )
    block_cache_bytes: int = Field(Sizes().block_cache, ge=1 << 20, description="RocksDB's cache of blocks")
    write_buffer_bytes: int = Field(
        Sizes().write_buffer, ge=1 << 20, description="RocksDB's table in memory, of which there may be two"
    )
    drain_s: float = Field(5.0, ge=0, description="seconds that running calls get when the service stops")

    def limits(self) -> Limits:
        return Limits(
            max_entries=self.max_entries,
            max_stored_bytes=self.max_stored_bytes,
            max_payload_bytes=self.max_payload_bytes,
            lease_ttl_ms=self.lease_ttl_ms,
            max_history=self.max_history,
            entry_ttl_ms=self.entry_ttl_s * 1000,
        )

    def sizes(self) -> Sizes:
        return Sizes(block_cache=self.block_cache_bytes, write_buffer=self.write_buffer_bytes)
