"""Logging of a service: JSON lines for machines, plain lines for a terminal, both on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from types import TracebackType

from dynbranch.runtime.config import ConfigError
from opentelemetry import trace


class JsonLines(logging.Formatter):
    """One JSON object a line, with the trace id where there is one."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line["trace_id"] = trace.format_trace_id(span.trace_id)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(service: str) -> None:
    """Set the root logger up; ``DYNBRANCH_LOG_LEVEL`` is debug, info (default), warning or error.

    An unknown level ends the process with a message, before anything has started.
    """
    level = os.environ.get("DYNBRANCH_LOG_LEVEL", "info").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigError(f"DYNBRANCH_LOG_LEVEL: {level.lower()!r} is none of debug, info, warning, error")
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter(f"%(asctime)s %(levelname).1s {service} %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(plain if sys.stderr.isatty() else JsonLines(service))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    sys.excepthook = _log_crash


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("crashed", exc_info=(kind, error, trace))
