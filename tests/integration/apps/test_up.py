"""What ``up`` says at its start, and that it starts all the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from dynbranch.cli.failures import CliFailure
from dynbranch.cli.up_notes import check_engine_url, engine_problem, how_to_use, reuse_notes, template_notes
from dynbranch.demo.processes import free_ports
from dynbranch.demo.stack import TEMPLATES

SHIPPED = (TEMPLATES / "menus.yaml").read_text()


def test_a_template_that_can_not_be_used_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(SHIPPED)
    (tmp_path / "bad.yaml").write_text(SHIPPED.replace("'^I pick: (.*)$'", "'^I pick: (?=.)'"))
    [note] = template_notes(tmp_path)
    assert re.search(r"bad\.yaml:\d+: decision_points\.pick\.resolved_by\.regex: the regular", note)
    assert "template check" in note
    assert template_notes(TEMPLATES) == []


def test_a_folder_without_templates_is_told(tmp_path: Path) -> None:
    [note] = template_notes(tmp_path)
    assert "nothing runs ahead" in note and "template learn" in note


def test_a_model_that_is_not_reused_is_told_with_what_to_vouch_for() -> None:
    models = [{"id": "a", "not_reused_because": None}, {"id": "b", "not_reused_because": "the weights …"}]
    [note] = reuse_notes(models)
    assert note.startswith("Nothing of b is reused") and "FINGERPRINT_FACTS" in note


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[::1"])
def test_an_engine_that_is_not_there_has_a_problem(url: str) -> None:
    assert engine_problem(url)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:8123", "http://localhost:8123"),
        ("127.0.0.1:8123/", "http://127.0.0.1:8123"),
        ("ftp://host:1", "http://127.0.0.1:8000"),
        ("http://", "http://127.0.0.1:8000"),
        ("http://[::1", "http://127.0.0.1:8000"),
        ("http://host:99999", "http://127.0.0.1:8000"),
    ],
)
def test_a_url_that_is_none_is_refused_at_once(url: str, advice: str) -> None:
    with pytest.raises(CliFailure) as failure:
        check_engine_url(url)
    assert advice in failure.value.advice
    check_engine_url("https://[::1]:8000/v1/")


def test_what_is_said_fits_what_runs(tmp_path: Path) -> None:
    demo = "\n".join(how_to_use("http://g", "m", tmp_path, passages="http://p"))
    assert 'model "m"' in demo and "extra_body" in demo and "tools/search" in demo and "http://p/" in demo
    own = "\n".join(how_to_use("http://g", "", tmp_path))
    assert "MODEL" not in own and "tools" not in own and "passages" not in own and "/v1/models" in own


def test_without_an_engine_the_rest_is_up(tmp_path: Path) -> None:
    """The engine's absence is told, the stack serves what it can, and Ctrl-C ends it."""
    port, nobody = free_ports(2)
    (tmp_path / "templates").mkdir()
    arguments = ["up", "--port", str(port), "--engine-url", f"http://127.0.0.1:{nobody}"]
    arguments += ["--engine-kind", "sglang", "--templates", "templates", "--state-dir", "state"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("DYNBRANCH_", "OTEL_"))}
    with subprocess.Popen(
        [sys.executable, "-m", "dynbranch.cli.main", *arguments],
        cwd=tmp_path,
        env={**environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        try:
            for line in process.stdout:
                said += line
                if "Ctrl-C" in line:
                    break
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as response:
                assert response.status == 200
            state = json.loads((tmp_path / "state" / "stack.json").read_text())
            with urllib.request.urlopen(state["metrics"]["csl"], timeout=20) as response:
                assert b"dynbranch_csl_" in response.read()
        finally:
            process.send_signal(signal.SIGINT)
            said += process.stdout.read()
    assert process.returncode == 0, said
    assert f"No engine answers at http://127.0.0.1:{nobody}" in said
    assert "No engine is ready yet" in said and "nothing runs ahead" in said
    assert "/passages/" not in said and 'model "' not in said
