"""The evaluation's tables in the documentation.

``python -m dynbranch.bench.paper.page RESULTS PAGE`` reads ``paper.json`` of the folder and writes its
tables into the page, each where the page has a place for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynbranch.bench.pages import page_with


def evaluated(page: str, result: Mapping[str, Any]) -> str:
    """Raises ValueError for a table that the page has no place for."""
    for table in result["raw"]["tables"]:
        page = page_with(page, table["title"], table["rows"])
    return page


def main() -> None:
    results, page = Path(sys.argv[1]), Path(sys.argv[2])
    result = json.loads((results / "paper.json").read_text(encoding="utf-8"))
    page.write_text(evaluated(page.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
