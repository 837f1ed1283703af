"""``traces``: one trace of a file as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dynbranch.cli.failures import CliFailure
from dynbranch.cli.screens import console_for_tables
from dynbranch.demo.run import TRACE_FILE
from dynbranch.demo.tracefile import SeenSpan, read_spans
from dynbranch.demo.tracetree import trace_tree
from dynbranch.runtime.telemetry import SPAN_ARRIVAL, SPAN_WRITE


def show_trace(file: Path | None, beginning: str, *, as_json: bool) -> None:
    path = file or _newest(Path.cwd())
    try:
        spans = read_spans(path)
    except OSError as error:
        raise CliFailure(f"{path} can not be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise CliFailure(f"{path} is not OTLP JSON lines") from None
    trace_id = _chosen(spans, beginning, path)
    console = console_for_tables()
    if as_json:
        console.print_json(data=[asdict(span) for span in spans if span.trace_id == trace_id])
    else:
        console.print(trace_tree(spans, trace_id))


def _chosen(spans: list[SeenSpan], beginning: str, path: Path) -> str:
    matching = [span for span in spans if span.trace_id.startswith(beginning.lower())]
    if not matching:
        raise CliFailure(
            f"{path} has no trace {beginning}".rstrip(), "Traces are on in 'demo' and 'up --traces'."
        )
    finished = matching if beginning else _of_finished(matching)
    return max(finished or matching, key=lambda span: span.start_ns).trace_id


def _of_finished(spans: Sequence[SeenSpan]) -> list[SeenSpan]:
    """Those of traces whose every span has its parent in the file, up to what a gateway was sent. Spans are
    written when they end, so that the parents of what still runs are not there."""
    ids = {(span.trace_id, span.span_id) for span in spans}
    running = {
        span.trace_id
        for span in spans
        if span.parent_id
        and span.name not in (SPAN_ARRIVAL, SPAN_WRITE)
        and (span.trace_id, span.parent_id) not in ids
    }
    return [span for span in spans if span.trace_id not in running]


def _newest(here: Path) -> Path:
    files = sorted(here.glob(f"var/*/{TRACE_FILE}"))
    if not files:
        raise CliFailure(
            "there is no trace file below ./var", "'dynbranch demo' and 'up --traces' write one."
        )
    return files[-1]
