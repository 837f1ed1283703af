"""The command line: fast help, failures that say what to do, commands against a gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from dynbranch.cli.failures import CliFailure
from dynbranch.cli.main import app
from dynbranch.cli.places import Place, find
from typer.testing import CliRunner

NAME = "ab" * 32
ENTRY = {
    "name": NAME,
    "entry": {
        "incarnation": 3,
        "label": "get",
        "level": "sourced",
        "created_unix_ms": 1_700_000_000_000,
        "derivations": [
            {
                "read_token": "1.5",
                "reads": [{"record": "passages/1", "as_of": "1.5"}],
                "producers": [{"name": "cd" * 32, "incarnation": 1}],
            }
        ],
    },
    "invalidations": [
        {
            "incarnation": 2,
            "version": "1.4",
            "record": "passages/1",
            "lost_producer": None,
            "label": "get",
            "reporter": "passages",
        },
        {
            "incarnation": 1,
            "version": "1.3",
            "record": None,
            "lost_producer": {"name": "cd" * 32, "incarnation": 1},
            "label": "",
            "reporter": "",
        },
    ],
    "live": [],
}
EXPLAINED = {
    "name": NAME,
    "outcome": "miss",
    "why": "Nothing is stored under this name.",
    "model": "m",
    "fields": [
        {"path": "model", "class": "determines", "known": True},
        {"path": "x", "class": "determines", "known": False},
    ],
}
WRITTEN = {"version": "1.6", "invalidated": 1, "invalidated_names": [NAME], "closed_leases": 0}

BRANCH = {
    "branch": "0b" * 16,
    "workflow_type": "picks",
    "state": "resolved",
    "gate": {"opens": True, "reason": "free slots"},
    "prediction": {
        "spent_ms": 7.54,
        "answers": [
            {
                "predictor": "history(window=9)",
                "answer": "ranked",
                "spent_ms": 2.25,
                "ranking": ["[x]", "red"],
            },
            {"predictor": "stream", "answer": "late", "spent_ms": 50.75, "ranking": []},
        ],
    },
    "candidates": [
        {"selection": "red", "rank": 1, "admitted": True, "reason": "", "selected": True},
        {"selection": "[blue]", "rank": 2, "admitted": False, "reason": "no slot", "selected": False},
    ],
    "resolution": {"selections": ["red"], "by": "stream", "after_ms": 12.34},
    "fills": [
        {
            "fill": "0f" * 16,
            "selection": "red",
            "chain": ["act", "tell"],
            "stages": [{"stage": "act", "state": "promoted", "saved_ms": 40.0}],
        }
    ],
    "abort_confirmed_ms": [1.5],
}
BRANCHES = {
    "object": "list",
    "data": [
        {
            "branch": "0b" * 16,
            "workflow_type": "picks",
            "workflow": "w1",
            "decision_point": "pick",
            "state": "open",
            "opened_unix_ms": 1_700_000_000_000,
            "candidates": 2,
            "fills": 1,
            "consumed": 0,
        }
    ],
}


STATS = {
    "csl": {"version": "1.2", "hits": 6, "joins": 1, "misses": 1},
    "controller": {"arrivals": 1234, "outcomes": {"hit": 1, "miss": 3}, "saved_ms": 1.5},
}


class Answers(BaseHTTPRequestHandler):
    keys: ClassVar[list[str | None]] = []
    explained: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.path == "/dynbranch/v1/stats":
            self._answer(200, STATS)
        elif self.path == f"/dynbranch/v1/entries/{NAME}":
            self._answer(200, ENTRY)
        elif self.path == f"/dynbranch/v1/branches/{BRANCH['branch']}":
            self._answer(200, BRANCH)
        elif self.path in ("/dynbranch/v1/branches", "/dynbranch/v1/branches?workflow=w%201"):
            self._answer(200, BRANCHES if "?" not in self.path else {"object": "list", "data": []})
        else:
            self._answer(404, {"error": {"message": "Nothing is or was stored under this name."}})

    def do_POST(self) -> None:
        self.keys.append(self.headers.get("authorization"))
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        match self.path:
            case path if path.startswith("/dynbranch/v1/explain/"):
                self.explained.append(path.removeprefix("/dynbranch/v1/explain"))
                self._answer(200, EXPLAINED)
            case "/dynbranch/v1/writes" if "/" in body["records"][0]:
                self._answer(200, WRITTEN)
            case _:
                self._answer(400, {"error": {"message": "'records[0]': record 'x' is not 'source/key'."}})

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DYNBRANCH_URL", raising=False)
    return CliRunner()


def test_inspect_shows_why_it_exists_and_why_it_went(run: CliRunner, gateway: str) -> None:
    shown = run.invoke(app, ["inspect", NAME, "--gateway", gateway])
    assert shown.exit_code == 0
    assert "passages/1 as of 1.5" in shown.output
    assert f"its producer {'cd' * 32} fell" in shown.output
    data = run.invoke(app, ["inspect", NAME, "--gateway", gateway, "--json"])
    assert json.loads(data.output) == ENTRY


def test_inspect_branch_shows_why_each_candidate_ran_or_did_not(run: CliRunner, gateway: str) -> None:
    shown = run.invoke(app, ["inspect", "branch", str(BRANCH["branch"]), "--gateway", gateway])
    assert shown.exit_code == 0
    for part in ("free slots", "[blue]", "no slot", "stages of fills red", "promoted", "12.3", "act, tell"):
        assert part in shown.output, part
    for part in ("history(window=9)", "1. [x]", "2. red", "late", "50.8", "7.5"):
        assert part in shown.output, part
    data = run.invoke(app, ["inspect", "branch", str(BRANCH["branch"]), "--gateway", gateway, "--json"])
    assert json.loads(data.output) == BRANCH


def test_inspect_branch_lists_the_newest(run: CliRunner, gateway: str) -> None:
    shown = run.invoke(app, ["inspect", "branch", "--gateway", gateway])
    assert shown.exit_code == 0 and "picks w1" in shown.output and str(BRANCH["branch"]) in shown.output
    none = run.invoke(app, ["inspect", "branch", "--workflow", "w 1", "--gateway", gateway])
    assert "knows no branch" in none.output
    wrong = run.invoke(app, ["inspect", NAME, "abc", "--gateway", gateway])
    assert wrong.exit_code != 0 and "inspect branch abc" in wrong.output


def test_a_branch_is_found_by_the_beginning_of_its_id(run: CliRunner, gateway: str) -> None:
    for beginning in ("0b", "0B0b0b…"):
        shown = run.invoke(app, ["inspect", "branch", beginning, "--gateway", gateway])
        assert shown.exit_code == 0 and "free slots" in shown.output
    shown = run.invoke(app, ["inspect", "branch", "ff", "--gateway", gateway])
    assert shown.exit_code == 1 and "begins with 'ff'" in shown.output


def test_in_a_pipe_nothing_is_cut_off(run: CliRunner, gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = run.invoke(app, ["inspect", "branch", "--gateway", gateway])
    assert str(BRANCH["branch"]) in shown.output and "picks w1" in shown.output
    shown = run.invoke(app, ["inspect", NAME, "--gateway", gateway])
    assert NAME in shown.output and "cd" * 32 in shown.output
    assert "2023-11-1" in shown.output and "unix" not in shown.output


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"model": "m", "messages": [{"role": "user", "content": "a"}]}, "/v1/chat/completions"),
        ({"model": "m", "system": "s", "messages": []}, "/v1/messages"),
        (
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "/v1/messages",
        ),
        ({"model": "m", "messages": [], "tools": [{"name": "x", "input_schema": {}}]}, "/v1/messages"),
        ({"model": "m", "messages": [], "tools": [{"type": "function"}]}, "/v1/chat/completions"),
        ({"model": "m", "input": "a"}, "/v1/responses"),
        ([], "/v1/chat/completions"),
    ],
)
def test_a_body_is_explained_in_the_protocol_that_it_is_written_in(
    run: CliRunner, gateway: str, body: Any, path: str
) -> None:
    shown = run.invoke(app, ["explain", "-", "--gateway", gateway], input=json.dumps(body))
    assert shown.exit_code == 0 and Answers.explained[-1] == path
    run.invoke(app, ["explain", "-", "--protocol", "messages", "--gateway", gateway], input=json.dumps(body))
    assert Answers.explained[-1] == "/v1/messages"


def test_explain_reads_a_file_or_standard_input(run: CliRunner, gateway: str, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text('{"model":"m"}')
    shown = run.invoke(app, ["explain", "body.json", "--gateway", gateway])
    assert shown.exit_code == 0
    assert "Nothing is stored under this name." in shown.output
    assert "unknown: it determines" in shown.output
    data = run.invoke(app, ["explain", "-", "--gateway", gateway, "--json"], input='{"model":"m"}')
    assert json.loads(data.output) == EXPLAINED
    absent = run.invoke(app, ["explain", "absent.json", "--gateway", gateway])
    assert absent.exit_code == 1
    assert "absent.json can not be read" in absent.output


def test_the_key_of_a_harness_is_sent(run: CliRunner, gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("", "sk-a"):
        monkeypatch.setenv("DYNBRANCH_API_KEY", key)
        run.invoke(app, ["explain", "-", "--gateway", gateway], input='{"model":"m"}')
    assert Answers.keys[-2:] == [None, "Bearer sk-a"]


def test_write_reports_records(run: CliRunner, gateway: str) -> None:
    shown = run.invoke(app, ["write", "passages/1", "--gateway", gateway])
    assert shown.exit_code == 0
    assert NAME in shown.output
    refused = run.invoke(app, ["write", "x", "--gateway", gateway])
    assert refused.exit_code == 1
    assert "is not 'source/key'" in refused.output


def test_a_name_that_nothing_is_known_of_is_said_so(run: CliRunner, gateway: str) -> None:
    shown = run.invoke(app, ["inspect", "00" * 32, "--gateway", gateway])
    assert shown.exit_code == 1
    assert "Nothing is or was stored" in shown.output


def test_every_command_of_a_gateway_finds_it_by_its_variable(
    run: CliRunner, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNBRANCH_URL", gateway)
    for arguments in (
        ["stats"],
        ["inspect", NAME],
        ["inspect", "branch"],
        ["inspect", "branch", str(BRANCH["branch"])],
        ["explain", "-"],
        ["write", "passages/1"],
    ):
        shown = run.invoke(app, [*arguments, "--json"], input='{"model":"m"}')
        assert shown.exit_code == 0 and isinstance(json.loads(shown.output), dict), arguments


def test_stats_are_a_table_with_the_share_that_was_reused(run: CliRunner, gateway: str) -> None:
    table = run.invoke(app, ["stats", "--gateway", gateway])
    for part in ("7 of 8, 87.5%", "1 of 4, 25.0%", "1,234", "outcomes: miss", "counts twice"):
        assert part in table.output, part
    assert "{" not in table.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stats", "--csl", "127.0.0.1:9"], "name both"),
        (["inspect", NAME], "'dynbranch up'"),
        (["stats"], "'dynbranch up'"),
        (["inspect", NAME, "--gateway", "127.0.0.1:9"], "does not answer"),
        (["stats", "--csl", "127.0.0.1:9", "--controller", "127.0.0.1:9"], "--csl"),
        (["bench", "nothing"], "There are: "),
        (["traces"], "up --traces"),
        (["traces", "absent.jsonl"], "can not be read"),
    ],
)
def test_a_failure_says_what_to_do(run: CliRunner, arguments: list[str], says: str) -> None:
    shown = run.invoke(app, arguments)
    assert shown.exit_code == 1
    assert says in shown.output


def test_a_taken_port_is_said_before_anything_starts(run: CliRunner, gateway: str, tmp_path: Path) -> None:
    shown = run.invoke(app, ["up", "--port", gateway.rpartition(":")[2]])
    assert shown.exit_code == 1
    assert "--port" in shown.output
    assert not (tmp_path / "var").exists()


def test_a_demo_that_would_show_nothing_is_refused_at_once(run: CliRunner, tmp_path: Path) -> None:
    shown = run.invoke(app, ["demo", "--routing", "1", "--questions", "2"])
    assert shown.exit_code == 1
    assert "10 distinct requests" in shown.output and "--questions 3" in shown.output
    assert not list(tmp_path.iterdir())


def test_benchmarks_are_listed(run: CliRunner) -> None:
    shown = run.invoke(app, ["bench"])
    assert shown.exit_code == 0
    for name in ("demo", "names", "start"):
        assert name in shown.output


def test_traces_draws_the_last_trace(run: CliRunner, tmp_path: Path) -> None:
    span = {
        "traceId": "01" * 16,
        "spanId": "02" * 8,
        "name": "arrival",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "9",
    }
    line = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    (tmp_path / "t.jsonl").write_text(json.dumps(line) + "\n")
    shown = run.invoke(app, ["traces", "t.jsonl"])
    assert "arrival" in shown.output
    assert json.loads(run.invoke(app, ["traces", "t.jsonl", "--json"]).output)[0]["trace_id"] == "01" * 16
    assert run.invoke(app, ["traces", "t.jsonl", "--trace", "ff"]).exit_code == 1


def test_the_newest_trace_is_one_that_is_finished(run: CliRunner, tmp_path: Path) -> None:
    done = {"traceId": "01" * 16, "spanId": "02" * 8, "name": "arrival", "parentSpanId": "aa" * 8}
    done |= {"startTimeUnixNano": "1", "endTimeUnixNano": "9"}
    runs = {"traceId": "03" * 16, "spanId": "04" * 8, "name": "csl.demand", "parentSpanId": "05" * 8}
    runs |= {"startTimeUnixNano": "2", "endTimeUnixNano": "3"}
    line = {"resourceSpans": [{"scopeSpans": [{"spans": [done, runs]}]}]}
    (tmp_path / "t.jsonl").write_text(json.dumps(line) + "\n")
    assert "01" * 16 in run.invoke(app, ["traces", "t.jsonl"]).output
    assert "03" * 16 in run.invoke(app, ["traces", "t.jsonl", "--trace", "03"]).output


def state_of(folder: Path, name: str, pid: int) -> None:
    (folder / "var" / name).mkdir(parents=True)
    state = {"pid": pid, "gateway": f"http://{name}", "csl": "c", "controller": "d"}
    (folder / "var" / name / "stack.json").write_text(json.dumps(state))


def test_the_newest_stack_that_runs_is_found(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    state_of(tmp_path, "1", os.getpid())
    state_of(tmp_path, "2", os.getpid())
    state_of(tmp_path, "3", ended.pid)
    (tmp_path / "var" / "4").mkdir()
    (tmp_path / "var" / "4" / "stack.json").write_text("{")
    assert find(None, here=tmp_path, environ={}) == Place("http://2")
    assert find(None, here=tmp_path, environ={"DYNBRANCH_URL": "http://x/"}).gateway == "http://x"
    assert find("host:1", here=tmp_path, environ={}).gateway == "http://host:1"
    with pytest.raises(CliFailure):
        find(None, here=tmp_path / "var", environ={})


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from dynbranch.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'grpc', 'openai', 'aiohttp', 'pydantic', 'opentelemetry', 'dynbranch.demo.run'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_service_with_a_wrong_setting_says_which(tmp_path: Path) -> None:
    environ = {**os.environ, "DYNBRANCH_CSL_LISTNE": "127.0.0.1:0"}
    done = subprocess.run(
        [sys.executable, "-m", "dynbranch.cli.main", "csl"],
        env=environ,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "DYNBRANCH_CSL_LISTEN" in done.stderr
