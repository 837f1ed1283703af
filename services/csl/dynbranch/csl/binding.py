"""Which binding reaches RocksDB: rocksdict, or rocksdb-py for those who must and say what they accept."""

from __future__ import annotations

import logging
from typing import assert_never

from dynbranch.csl.config import Binding, CslSettings
from dynbranch.csl.opening import OpenDatabase
from dynbranch.csl.rocks import RocksKeyValue
from dynbranch.runtime.config import ConfigError

_log = logging.getLogger(__name__)

_GIVEN_UP = (
    "DYNBRANCH_CSL_BINDING: with rocksdb-py what was acknowledged survives a crash of the process, and no "
    "more is promised. Given up: power loss (it has no flush of its log), noticing a log that is damaged in "
    "the middle (its later half is dropped silently, and invalidated results come back), noticing missing "
    "changes (it tells no sequence number), and serving while the disk stalls (it lets no other thread run). "
    "Set DYNBRANCH_CSL_ACCEPT_PROCESS_CRASH_DURABILITY=true to accept this, or leave the binding at rocksdict"
)
_NOT_INSTALLED = (
    "DYNBRANCH_CSL_BINDING: rocksdb-py is not installed; install the extra csl-rocksdb-py (x86-64 only), or "
    "leave the binding at rocksdict"
)


def opener(settings: CslSettings) -> OpenDatabase:
    """Raises ConfigError."""
    match settings.binding:
        case Binding.ROCKSDICT:
            return RocksKeyValue
        case Binding.ROCKSDB_PY:
            if not settings.accept_process_crash_durability:
                raise ConfigError(_GIVEN_UP)
            try:
                from dynbranch.csl.rocksdb_py import RocksDbPyKeyValue
            except ModuleNotFoundError as error:
                if error.name != "rocksdbpy":
                    raise
                raise ConfigError(_NOT_INSTALLED) from None
            _log.warning("through rocksdb-py: what is acknowledged need not survive a power loss")
            return RocksDbPyKeyValue
        case unknown:
            assert_never(unknown)
