"""Tables of results in the pages of the documentation."""

from __future__ import annotations

from collections.abc import Sequence


def page_with(page: str, name: str, rows: Sequence[Sequence[str]]) -> str:
    """The page with the rows as a Markdown table between the marks of that name; the first row is its head.

    Raises ValueError where the page has no such marks.
    """
    begins, ends = f"<!-- {name} -->", "<!-- end -->"
    before, found, rest = page.partition(begins)
    _, closed, after = rest.partition(ends)
    if not found or not closed:
        raise ValueError(f"the page has no place between {begins} and {ends}")
    headings, *others = (f"| {' | '.join(row)} |" for row in rows)
    ruler = f"|---|{'---:|' * (len(rows[0]) - 1)}"
    return "\n".join([before + begins, headings, ruler, *others, ends + after])
