"""One trace as a tree of lines that a person can read."""

from __future__ import annotations

from collections.abc import Sequence

from dynbranch.demo.tracefile import SeenSpan
from rich.markup import escape
from rich.tree import Tree

_SHOWN = (
    "dynbranch.outcome",
    "gen_ai.tool.name",
    "dynbranch.stage",
    "gen_ai.request.model",
    "gen_ai.usage.output_tokens",
    "dynbranch.commit",
    "dynbranch.level",
    "dynbranch.reporter",
    "dynbranch.invalidated_entries",
)
"""The attributes that a line shows, in this order; the file has them all."""


def trace_tree(spans: Sequence[SeenSpan], trace_id: str) -> Tree:
    """The spans of one trace, children below their parents, in the order of their starts."""
    mine = sorted((s for s in spans if s.trace_id == trace_id), key=lambda s: (s.start_ns, s.end_ns))
    ids = {s.span_id for s in mine}
    tree = Tree(f"trace {trace_id}")
    nodes: dict[str, Tree] = {}
    begin_ns = mine[0].start_ns if mine else 0

    def add(span: SeenSpan, parent: Tree) -> None:
        node = nodes[span.span_id] = parent.add(_line(span, begin_ns))
        for child in mine:
            if child.parent_id == span.span_id and child.span_id not in nodes:
                add(child, node)

    for span in mine:
        # A parent that is not in the file is the caller's own span: its children are roots here.
        if span.parent_id not in ids and span.span_id not in nodes:
            add(span, tree)
    return tree


def _line(span: SeenSpan, begin_ns: int) -> str:
    facts = [
        f"{key.rpartition('.')[2]}={escape(str(span.attributes[key]))}"
        for key in _SHOWN
        if key in span.attributes
    ]
    parts = [
        f"{span.service.removeprefix('dynbranch-')} [bold]{escape(span.name)}[/bold]",
        f"+{(span.start_ns - begin_ns) / 1e6:.1f} ms, {span.duration_ms:.1f} ms",
        *facts,
        *([f"links={len(span.links)}"] if span.links else []),
        *(["failed"] if span.failed else []),
    ]
    return "  ".join(parts)
