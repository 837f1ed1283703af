"""One request's workflow as a picture: the floor above, running ahead below, and the fills under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from dynbranch.demo.playing import Played
from dynbranch.demo.tracefile import SeenSpan

_WIDTH, _LEFT, _TOP, _ROW, _BAR = 1000, 190, 56, 34, 22
_COLOURS = {
    "executed": "#8ea3b8",
    "promoted": "#2e8b57",
    "adopted": "#6db58a",
    "hit": "#3d7ebf",
    "fill": "#e3a33b",
    "fill, discarded": "#ead9b5",
    "pause": "#eeeeee",
}
_SPAN_FILL, _SPAN_GENERATE = "fill", "generate"


@dataclass(frozen=True, slots=True)
class Bar:
    """``kind`` is one of the colours."""

    lane: str
    label: str
    begin_ms: float
    end_ms: float
    kind: str


def bars_of(floor: Played, ahead: Played, spans: Sequence[SeenSpan]) -> list[Bar]:
    """Both workflows begin at 0. ``spans`` are those of the one that ran ahead; of them, fills are drawn."""
    return [
        *_requests("without DynBranch", floor),
        *_requests("with DynBranch", ahead),
        *_fills(ahead.began_unix_ms, spans),
    ]


def _requests(lane: str, played: Played) -> Iterator[Bar]:
    at_ms = 0.0
    for step in played.steps:
        if step.begin_ms - at_ms > 100:
            yield Bar(lane, "a person thinks", at_ms, step.begin_ms, "pause")
        at_ms = step.begin_ms + step.latency_ms
        kind = step.outcome if step.outcome in _COLOURS else "executed"
        yield Bar(lane, step.stage, step.begin_ms, at_ms, kind)


def _fills(began_unix_ms: float, spans: Sequence[SeenSpan]) -> Iterator[Bar]:
    fills = sorted((span for span in spans if span.name == _SPAN_FILL), key=lambda span: span.start_ns)
    for number, fill in enumerate(fills, 1):
        lane = f"fill {number}: {str(fill.attributes.get('dynbranch.selection', ''))[:20]}"
        kind = "fill" if fill.attributes.get("dynbranch.consumed") else "fill, discarded"
        for span in spans:
            if span.name == _SPAN_GENERATE and span.trace_id == fill.trace_id:
                begin, end = (ns / 1e6 - began_unix_ms for ns in (span.start_ns, span.end_ns))
                yield Bar(lane, "", begin, end, kind)


def timeline_svg(bars: Sequence[Bar], title: str) -> str:
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    end_ms = max((bar.end_ms for bar in bars), default=1.0)
    height = _TOP + _ROW * len(lanes) + 70
    scale = (_WIDTH - _LEFT - 20) / end_ms
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(12, 26, title, size=16),
    ]
    for place, lane in enumerate(lanes):
        parts.append(_text(12, _TOP + _ROW * place + 16, lane))
    parts += _axis(end_ms, scale, _TOP + _ROW * len(lanes))
    for bar in bars:
        x, y = _LEFT + bar.begin_ms * scale, _TOP + _ROW * lanes.index(bar.lane)
        width = max(4.0, (bar.end_ms - bar.begin_ms) * scale)
        told = f"{bar.label} {bar.end_ms - bar.begin_ms:.0f} ms, {bar.kind}".strip()
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{_COLOURS[bar.kind]}" '
            f'stroke="white"><title>{escape(told)}</title></rect>'
        )
        if width > 8 * len(bar.label):
            parts.append(_text(x + 4, y + 15, bar.label, size=11))
    parts += _legend(sorted({bar.kind for bar in bars}, key=list(_COLOURS).index), height - 16)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(end_ms: float, scale: float, y: int) -> Iterator[str]:
    step = next((one for one in (100, 250, 500, 1000, 2500, 5000, 10_000) if end_ms / one <= 12), 30_000)
    for at in range(0, int(end_ms) + 1, step):
        x = _LEFT + at * scale
        yield f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{y}" stroke="#dddddd"/>'
        yield _text(x - 8, y + 16, f"{at / 1000:g} s", size=11)


def _legend(kinds: Sequence[str], y: int) -> Iterator[str]:
    for place, kind in enumerate(kinds):
        x = _LEFT + 130 * place
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_COLOURS[kind]}"/>'
        yield _text(x + 18, y, kind, size=11)


def _text(x: float, y: float, text: str, *, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(text)}</text>'
