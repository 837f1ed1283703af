"""A flame graph of sampled stacks, as a picture that needs no script.

``py-spy record --format raw --output STACKS --pid PID --duration 20`` samples a service that works; then
``python -m dynbranch.bench.flames STACKS PICTURE.svg TITLE`` draws what its event loop did. The width of a
box is its share of the samples; the loop's own waiting and gRPC's threads are left out.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, ROW, MARGIN = 1200, 17, 8
MIN_SHARE = 0.004
_LOOP = "Runner.run"
_FRAME = re.compile(r"^(?P<name>.+?) \((?P<file>[^()]*?)(?::\d+)?\)$")


@dataclass(slots=True)
class Box:
    """One function in one place of the stack. ``samples`` counts those above it too."""

    name: str
    samples: int = 0
    above: dict[str, Box] = field(default_factory=dict)


def tree_of(lines: list[str]) -> Box:
    """Of stacks one a line, outermost frame first, between semicolons, a count last."""
    root = Box("event loop")
    for line in lines:
        stack, _, count = line.rstrip().rpartition(" ")
        frames = [_label(frame) for frame in stack.split(";")]
        start = next((place for place, frame in enumerate(frames) if frame.startswith(_LOOP)), None)
        if start is None or start + 1 == len(frames) or not count.isdigit():
            continue
        box = root
        root.samples += int(count)
        for frame in frames[start + 1 :]:
            box = box.above.setdefault(frame, Box(frame))
            box.samples += int(count)
    return root


def picture(root: Box, title: str) -> str:
    """The whole SVG."""
    depth = _depth(root, root.samples)
    height = (depth + 2) * ROW + 3 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{WIDTH}" height="{height}" fill="#fffdf8"/>'
        f'<text x="{MARGIN}" y="{ROW}" font-size="14">{escape(title)}, {root.samples} samples</text>'
    ]
    _draw(root, root.samples, MARGIN, height - MARGIN - ROW, parts)
    return "\n".join([*parts, "</svg>", ""])


def _draw(box: Box, total: int, x: float, y: float, parts: list[str]) -> None:
    share = box.samples / total
    width = share * (WIDTH - 2 * MARGIN)
    hue = 20 + sum(box.name.encode()) % 35
    label = box.name if len(box.name) * 6.2 < width else box.name[: max(0, int(width / 6.2) - 1)]
    parts.append(
        f'<g><title>{escape(box.name)}: {share:.1%}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{ROW - 1}" fill="hsl({hue},75%,72%)" rx="1"/>'
        f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(label) if width > 14 else ""}</text></g>'
    )
    for child in sorted(box.above.values(), key=lambda child: child.name):
        if child.samples / total >= MIN_SHARE:
            _draw(child, total, x, y - ROW, parts)
        x += child.samples / total * (WIDTH - 2 * MARGIN)


def _depth(box: Box, total: int) -> int:
    shown = [child for child in box.above.values() if child.samples / total >= MIN_SHARE]
    return 1 + max((_depth(child, total) for child in shown), default=0)


def _label(frame: str) -> str:
    """Function and file name; never where the file lies on this machine."""
    match = _FRAME.match(frame)
    return f"{match['name']} ({Path(match['file']).name})" if match else frame


def main() -> None:
    stacks, target, title = sys.argv[1:4]
    root = tree_of(Path(stacks).read_text(encoding="utf-8").splitlines())
    Path(target).write_text(picture(root, title), encoding="utf-8")


if __name__ == "__main__":
    main()
