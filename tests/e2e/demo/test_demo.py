"""The commands that people run, with the real model, every service a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dynbranch.bench import start_time
from dynbranch.demo.processes import ProcessDied
from dynbranch.demo.stack import Stack, StackOptions
from dynbranch.demo.tracefile import SeenSpan, read_spans

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

COMMAND = (sys.executable, "-m", "dynbranch.cli.main")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, list[SeenSpan]]:
    """One run at reduced size: its data, its output, its spans."""
    folder = tmp_path_factory.mktemp("demo")
    size = ("--routing", "2", "--questions", "3", "--no-branches")
    done = subprocess.run(
        (*COMMAND, "demo", "--json", str(folder / "demo.json"), "--state-dir", str(folder / "state"), *size),
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((folder / "demo.json").read_text())
    return data, done.stdout, read_spans(Path(data["traces"]))


def arm(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(a for a in data["arms"] if a["name"] == name)


@pytest.mark.promise("I1", "I5")
def test_every_result_equals_the_floors(demo: tuple[dict[str, Any], str, list[SeenSpan]]) -> None:
    data, _, _ = demo
    assert data["problems"] == []
    assert data["figures"]["floor_vs_floor_equal_share"]["value"] == 1.0
    assert data["figures"]["byte_equal_share"]["value"] == 1.0
    for name in ("floor", "control", "fresh_floor"):
        assert set(arm(data, name)["outcomes"]) == {"bypass"}


def test_the_second_pass_hits_always(demo: tuple[dict[str, Any], str, list[SeenSpan]]) -> None:
    data, _, _ = demo
    assert set(arm(data, "second")["outcomes"]) == {"hit"}
    assert {call["level"] for call in arm(data, "second")["calls"]} == {"greedy", "sourced"}


@pytest.mark.promise("I3")
def test_a_write_fells_what_read_it_and_nothing_else(
    demo: tuple[dict[str, Any], str, list[SeenSpan]],
) -> None:
    data, _, _ = demo
    assert data["figures"]["stale_hits_after_write"]["value"] == 0
    # Three searches of the collection, three passages, and the three answers made from them.
    assert data["figures"]["invalidated_by_write"]["value"] == 9
    after = {call["key"]: call["outcome"] for call in arm(data, "after")["calls"]}
    assert {after[key] for key in after if key.endswith(("/search", "/get-0", "/answer"))} == {"miss"}
    assert {after[key] for key in after if key.endswith(("/get-1", "/decide", "/arguments"))} == {"hit"}


def test_a_person_sees_a_table_and_where_the_traces_are(
    demo: tuple[dict[str, Any], str, list[SeenSpan]],
) -> None:
    data, output, _ = demo
    for text in ("disabled (floor)", "second pass", "after 3 writes", data["traces"], "arrival"):
        assert text in output


def test_one_trace_spans_the_services(demo: tuple[dict[str, Any], str, list[SeenSpan]]) -> None:
    _, _, spans = demo
    by_id = {span.span_id: span for span in spans}
    traces: dict[str, list[SeenSpan]] = defaultdict(list)
    for span in spans:
        traces[span.trace_id].append(span)
    commits = [span for span in spans if span.name == "csl.commit" and span.service == "dynbranch-csl"]
    assert commits
    for commit in commits:
        path = [commit]
        while path[-1].parent_id in by_id:
            path.append(by_id[path[-1].parent_id])
        assert [(s.service.removeprefix("dynbranch-"), s.name) for s in path] == [
            ("csl", "csl.commit"),
            ("engine_agent", "csl.commit"),
            ("engine_agent", "generate"),
            ("gateway", "generate"),
            ("gateway", "arrival"),
        ]
    cascades = [span for span in spans if span.name == "cascade"]
    assert len(cascades) == 3
    for cascade in cascades:
        assert {s.name for s in traces[cascade.trace_id]} == {"passages.put", "write", "cascade"}


def test_a_hit_links_to_the_execution_that_it_serves(
    demo: tuple[dict[str, Any], str, list[SeenSpan]],
) -> None:
    _, _, spans = demo
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    hits = [s for s in spans if s.name == "arrival" and s.attributes.get("dynbranch.outcome") == "hit"]
    assert hits
    for hit in hits:
        (link,) = hit.links
        assert (by_id[link].service, by_id[link].name) == ("dynbranch-engine_agent", "generate")
        assert link[0] != hit.trace_id


def test_what_readme_shows_works_as_it_is_written(tmp_path: Path) -> None:
    """README's Python example, word for word but for the port: a miss, then a hit."""
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    with up(tmp_path) as (_, url):
        code = example.replace("http://127.0.0.1:8080", url)
        assert code != example
        said = [
            subprocess.run(
                (sys.executable, "-c", code), capture_output=True, text=True, check=True
            ).stdout.strip()
            for _ in range(2)
        ]
    assert said == ["miss", "hit"]


@contextmanager
def up(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``dynbranch up`` until it says that it is up; ended by Ctrl-C."""
    arguments = (
        "up",
        "--port",
        "0",
        "--state-dir",
        str(folder / "state"),
        "--data-dir",
        str(folder / "data"),
    )
    with subprocess.Popen((*COMMAND, *arguments), stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            url = ""
            for line in process.stdout:
                if found := re.search(r"DynBranch is up: (\S+)", line):
                    url = found[1]
                if "Ctrl-C" in line:
                    break
            assert url
            yield process, url
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            finally:
                # Where whoever started this ignores interrupts, so does the process.
                process.kill()


def ask(url: str, path: str, body: Any) -> tuple[str, dict[str, Any]]:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return response.headers["x-dynbranch-outcome"], json.load(response)


def test_up_serves_keeps_its_results_and_stops(tmp_path: Path) -> None:
    search = {"query": "river", "k": 2}
    with up(tmp_path) as (process, url):
        state = json.loads((tmp_path / "state" / "stack.json").read_text())
        first, answer = ask(url, "/dynbranch/v1/tools/search", search)
        second, again = ask(url, "/dynbranch/v1/tools/search", search)
        assert (first, second) == ("miss", "hit")
        assert answer == again
    assert process.returncode == 0
    assert not (tmp_path / "state" / "stack.json").exists()
    assert not [pid for pid in state["processes"].values() if Path(f"/proc/{pid}").exists()]
    # The result outlives the stack: it stands in the store on the disk.
    with up(tmp_path) as (_, url):
        outcome, kept = ask(url, "/dynbranch/v1/tools/search", search)
        assert (outcome, kept) == ("hit", answer)


def test_a_service_that_dies_ends_the_stack_with_its_log(tmp_path: Path) -> None:
    with Stack(StackOptions(state_dir=tmp_path)) as stack:
        stack.wait_ready()
        state = json.loads((tmp_path / "stack.json").read_text())
        os.kill(state["processes"]["csl"], signal.SIGKILL)
        with pytest.raises(ProcessDied, match="csl ended with signal 9"):
            while True:
                stack.check()


def test_the_start_benchmark_measures_starts() -> None:
    measured = start_time.measure(lambda *_: None, runs=1)
    figure = measured.figures["embedded_stack_s"]
    assert figure.n == 1
    assert 0 < measured.raw["runs"][0]["ready_s"] <= figure.value
