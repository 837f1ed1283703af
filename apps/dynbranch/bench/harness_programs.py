"""Real coding agents, as npm gives them, each in a home and an environment of its own: nobody's settings are
read, and nothing is sent anywhere but to the address that it is given."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MODEL: Final = "stub"
LIMIT_S: Final = 300
"""A task takes seconds; a machine with much else to do takes longer."""

_PATH: Final = os.environ.get("PATH", "/usr/bin:/bin")

Picks = Mapping[str, str]
"""What a person picks from menus: a label for each question."""


class ProgramFailed(Exception):
    """It ended with an error, or said nothing. The message has its last words."""


@dataclass(frozen=True, slots=True)
class Asking:
    """``modules``: the folder that npm has put the programs into. Picks: None where nobody is there."""

    modules: Path
    workspace: Path
    question: str
    picks: Picks | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """``package`` is its npm package. ``prepare`` writes its settings for an address into home and workspace;
    ``command`` asks it; ``answer`` finds its last word in what it printed. ``menus``: the command where a
    person answers, and what is said to it."""

    name: str
    package: str
    protocol: str
    prepare: Callable[[Path, Path, str], None]
    command: Callable[[Asking], list[str]]
    environment: Callable[[str], Mapping[str, str]]
    answer: Callable[[str], str]
    own_files: frozenset[str] = frozenset()
    """What it is told by in the workspace."""

    def missing(self, home: Path | None) -> str:
        """Why it can not run; empty if it can."""
        if home is None:
            return "make test-harnesses installs the programs"
        return "" if (home / "node_modules" / self.package).is_dir() else f"npm has no {self.package}"

    def ask(self, home: Path, folder: Path, url: str, question: str, picks: Picks | None = None) -> str:
        """Its answer, given in the workspace ``folder/"ws"``. Raises ProgramFailed."""
        own, workspace = folder / "home", folder / "ws"
        own.mkdir(parents=True, exist_ok=True)
        self.prepare(own, workspace, url)
        environment = {"HOME": str(own), "PATH": _PATH, "CI": "1", **self.environment(url)}
        command = self.command(Asking(home / "node_modules", workspace, question, picks))
        with _running(command, workspace, environment) as process:
            if picks is None:
                assert process.stdin is not None
                process.stdin.close()
                process.stdin = None
                printed = _printed(process)
            else:
                printed = _conversed(process, question, picks)
        try:
            return self.answer(printed)
        except (ValueError, LookupError, TypeError):
            raise ProgramFailed(f"{self.name} gave no answer: {printed[-2000:]}") from None


@contextmanager
def _running(
    command: list[str], workspace: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A group of processes of its own, which ends as a whole."""
    with subprocess.Popen(
        command,
        cwd=workspace,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _printed(process: subprocess.Popen[str]) -> str:
    try:
        printed, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired as late:
        raise ProgramFailed(f"it did not end within {LIMIT_S} s: {_text(late.stdout)[-2000:]}") from None
    if process.returncode != 0:
        raise ProgramFailed(f"it ended with {process.returncode}: {printed[-2000:]}\n{errors[-2000:]}")
    return printed


def _text(printed: Any) -> str:
    return printed.decode("utf-8", "replace") if isinstance(printed, bytes) else str(printed or "")


def _lines(descriptor: int, until: float) -> Iterator[str]:
    """What a program prints, line by line, until it ends or the time is over. Read by the descriptor itself:
    nobody can wait for what stands in a buffer already."""
    held = b""
    while time.monotonic() < until:
        if not select.select([descriptor], [], [], 1.0)[0]:
            continue
        read = os.read(descriptor, 65_536)
        if not read:
            break
        *whole, held = (held + read).split(b"\n")
        for line in whole:
            yield _text(line)
    if held:
        yield _text(held)


def _conversed(process: subprocess.Popen[str], question: str, picks: Picks) -> str:
    """A conversation over its standard input and output, in JSON lines: it asks whether it may use a tool,
    and a menu is such a question, too. Its last line is the result."""
    assert process.stdin is not None and process.stdout is not None

    def say(value: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(value) + "\n")
        process.stdin.flush()

    say({"type": "user", "message": {"role": "user", "content": question}})
    lines: list[str] = []
    for line in _lines(process.stdout.fileno(), time.monotonic() + LIMIT_S):
        lines.append(line)
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("type") == "control_request":
            say(_permitted(told, picks))
        elif told.get("type") == "result":
            return line
    raise ProgramFailed(f"it ended without a result: {' '.join(lines)[-2000:]}")


def _permitted(told: Mapping[str, Any], picks: Picks) -> Mapping[str, Any]:
    given = dict(told["request"].get("input") or {})
    if told["request"].get("tool_name") == "AskUserQuestion":
        given["answers"] = {one["question"]: picks[one["question"]] for one in given["questions"]}
    allowed = {"behavior": "allow", "updatedInput": given}
    answer = {"subtype": "success", "request_id": told["request_id"], "response": allowed}
    return {"type": "control_response", "response": answer}


def _nothing(home: Path, workspace: Path, url: str) -> None:
    pass


# -- Claude Code ---------------------------------------------------------------------------------------------


def _claude(asking: Asking) -> list[str]:
    # Where npm does not run what a package wants to do after its installation, the program is here.
    native = sorted(asking.modules.glob("@anthropic-ai/claude-code-*/claude"))
    program = str(native[0] if native else asking.modules / ".bin" / "claude")
    allowed = ("--allowedTools", "Read,Bash,Edit,Agent,Task")
    if asking.picks is None:
        return [program, "-p", asking.question, "--output-format", "json", *allowed]
    spoken = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
    return [program, "-p", *spoken, "--permission-prompt-tool", "stdio", *allowed]


CLAUDE_CODE: Final = Program(
    name="claude-code",
    package="@anthropic-ai/claude-code",
    protocol="messages",
    prepare=_nothing,
    command=_claude,
    environment=lambda url: {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-any",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    },
    answer=lambda printed: str(json.loads(printed)["result"]),
)


# -- Codex ---------------------------------------------------------------------------------------------------


def _codex_settings(home: Path, workspace: Path, url: str) -> None:
    settings = f"""
model = "{MODEL}"
model_provider = "gateway"
[model_providers.gateway]
name = "gateway"
base_url = "{url}/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex" / "config.toml").write_text(settings)


def _events(printed: str) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def _codex_answer(printed: str) -> str:
    texts = [
        event["item"]["text"]
        for event in _events(printed)
        if event["type"] == "item.completed" and event["item"]["type"] == "agent_message"
    ]
    return str(texts[-1])


CODEX: Final = Program(
    name="codex",
    package="@openai/codex",
    protocol="responses",
    prepare=_codex_settings,
    command=lambda asking: [
        str(asking.modules / ".bin" / "codex"),
        *("exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", asking.question),
    ],
    environment=lambda url: {"GATEWAY_KEY": "any"},
    answer=_codex_answer,
)


# -- opencode ------------------------------------------------------------------------------------------------


def _opencode_settings(home: Path, workspace: Path, url: str) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
        "models": {MODEL: {}},
    }
    settings = {"provider": {"gateway": provider}, "model": f"gateway/{MODEL}", "autoupdate": False}
    (workspace / "opencode.json").write_text(json.dumps(settings))


def _opencode_answer(printed: str) -> str:
    return str([event["part"]["text"] for event in _events(printed) if event["type"] == "text"][-1])


OPENCODE: Final = Program(
    name="opencode",
    package="opencode-ai",
    protocol="chat",
    prepare=_opencode_settings,
    command=lambda asking: [
        str(asking.modules / ".bin" / "opencode"),
        *("run", "--format", "json", asking.question),
    ],
    # It looks for models, plugins and servers of languages at its start, and waits where it finds no network.
    environment=lambda url: {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    },
    answer=_opencode_answer,
    own_files=frozenset({"opencode.json"}),
)


# -- qwen-code -----------------------------------------------------------------------------------------------


def _qwen_settings(home: Path, workspace: Path, url: str) -> None:
    (home / ".qwen").mkdir(exist_ok=True)
    settings = {"security": {"auth": {"selectedType": "openai"}}}
    (home / ".qwen" / "settings.json").write_text(json.dumps(settings))


QWEN_CODE: Final = Program(
    name="qwen-code",
    package="@qwen-code/qwen-code",
    protocol="chat",
    prepare=_qwen_settings,
    command=lambda asking: [str(asking.modules / ".bin" / "qwen"), "-p", asking.question, "--yolo"],
    environment=lambda url: {
        "OPENAI_API_KEY": "any",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_MODEL": MODEL,
    },
    answer=lambda printed: printed.strip().splitlines()[-1],
)

PROGRAMS: Final = (CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE)

GREEDY: Final = (CLAUDE_CODE, CODEX, OPENCODE)
"""Whose requests the gateway has decoded greedily."""


def installed() -> Path | None:
    """Where ``make test-harnesses`` has put the programs; None: they are not here."""
    told = os.environ.get("DYNBRANCH_HARNESSES_HOME", "")
    folder = Path(told) if told else Path(__file__).parents[3] / ".harnesses"
    return folder if (folder / "node_modules").is_dir() else None
