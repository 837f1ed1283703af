"""``traces``: one trace of a file as a tree."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from dynbranch.cli.failures import CliFailure
from dynbranch.demo.run import TRACE_FILE
from dynbranch.demo.tracefile import SeenSpan, read_spans
from dynbranch.demo.tracetree import trace_tree
from rich.console import Console


def show_trace(file: Path | None, beginning: str, *, as_json: bool) -> None:
    path = file or _newest(Path.cwd())
    try:
        spans = read_spans(path)
    except OSError as error:
        raise CliFailure(f"{path} can not be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise CliFailure(f"{path} is not OTLP JSON lines") from None
    trace_id = _chosen(spans, beginning, path)
    console = Console()
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
    return max(matching, key=lambda span: span.start_ns).trace_id


def _newest(here: Path) -> Path:
    files = sorted(here.glob(f"var/*/{TRACE_FILE}"))
    if not files:
        raise CliFailure(
            "there is no trace file below ./var", "'dynbranch demo' and 'up --traces' write one."
        )
    return files[-1]
