"""A benchmark's result file has what a reader needs to judge it, and nothing that names a machine."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

from dynbranch.bench import registry
from dynbranch.bench.result import Measured, Surroundings, result_json, write_result
from dynbranch.demo.measures import exact


def test_the_result_is_complete_and_names_no_host(tmp_path: Path) -> None:
    document = result_json("demo", Measured({"requests": exact(12, 12)}, {"arms": []}), Surroundings.now())
    path = tmp_path / "results" / "demo.json"
    write_result(path, document)
    text = path.read_text()
    read = json.loads(text)
    about = {"bench", "command", "commit", "machine", "when", "load_average", "took_s"}
    assert set(read) == {*about, "figures", "raw"} and read["took_s"] >= 0
    assert read["figures"] == {"requests": {"value": 12, "ci_low": 12, "ci_high": 12, "n": 12}}
    assert set(read["machine"]) == {"cpu", "cores", "memory_gib", "os"}
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert f'"{socket.gethostname()}"' not in text


def test_every_benchmark_can_be_loaded() -> None:
    for bench in registry.BENCHES.values():
        assert callable(bench.load(registry.Wishes()))


def test_every_benchmark_is_run_by_make_and_told_on_its_page() -> None:
    root = Path(__file__).parents[3]
    made = re.search(r"^BENCH \?= (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert made is not None and sorted(made[1].split()) == sorted(registry.BENCHES)
    page = (root / "docs" / "benchmarks.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*?\| (?:\d+) \| `?([^|`]*)`? \|", page, re.MULTILINE))
    assert sorted(rows) == sorted(registry.BENCHES)
    for name, figure in rows.items():
        file = root / "bench" / "results" / f"{name}.json"
        if file.exists() and " " not in figure.strip():
            assert figure in json.loads(file.read_text())["figures"], name
