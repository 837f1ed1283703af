"""A benchmark's result file has what a reader needs to judge it, and nothing that names a machine."""

from __future__ import annotations

import json
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
    assert set(read) == {"bench", "command", "commit", "machine", "when", "load_average", "figures", "raw"}
    assert read["figures"] == {"requests": {"value": 12, "ci_low": 12, "ci_high": 12, "n": 12}}
    assert set(read["machine"]) == {"cpu", "cores", "memory_gib", "os"}
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert f'"{socket.gethostname()}"' not in text


def test_every_benchmark_can_be_loaded() -> None:
    for bench in registry.BENCHES.values():
        assert callable(bench.load())
