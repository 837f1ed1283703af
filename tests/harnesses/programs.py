"""The harnesses themselves, each in a home and an environment of its own: nobody's settings are read, and
nothing is sent anywhere but to the address that it is given."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOME: Final = os.environ.get("DYNBRANCH_HARNESSES_HOME", "")
"""Where ``make test-harnesses`` has put them; empty: they are not here."""

MODEL: Final = "stub"
_LIMIT_S: Final = 240
_PATH: Final = os.environ.get("PATH", "/usr/bin:/bin")


@dataclass(frozen=True, slots=True)
class Program:
    """``package`` is its npm package. ``prepare`` writes its settings for an address into home and workspace;
    ``command`` asks it, with no person there; ``answer`` finds its last word in what it printed."""

    name: str
    package: str
    protocol: str
    prepare: Callable[[Path, Path, str], None]
    command: Callable[[Path, str], list[str]]
    environment: Callable[[str], Mapping[str, str]]
    answer: Callable[[str], str]

    def missing(self) -> str:
        """Why it can not run; empty if it can."""
        if not HOME:
            return "make test-harnesses installs the programs"
        return "" if (Path(HOME) / "node_modules" / self.package).is_dir() else f"npm has no {self.package}"

    def ask(self, folder: Path, url: str, question: str) -> str:
        """Its answer, given in the workspace ``folder/"ws"``."""
        home, workspace = folder / "home", folder / "ws"
        home.mkdir(exist_ok=True)
        self.prepare(home, workspace, url)
        environment = {"HOME": str(home), "PATH": _PATH, "CI": "1", **self.environment(url)}
        done = subprocess.run(
            self.command(Path(HOME) / "node_modules", question),
            cwd=workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return self.answer(done.stdout)


def _nothing(home: Path, workspace: Path, url: str) -> None:
    pass


# -- Claude Code ---------------------------------------------------------------------------------------------


def _claude(modules: Path, question: str) -> list[str]:
    # Where npm does not run what a package wants to do after its installation, the program is here.
    native = sorted(modules.glob("@anthropic-ai/claude-code-*/claude"))
    program = native[0] if native else modules / ".bin" / "claude"
    return [str(program), "-p", question, "--output-format", "json", "--allowedTools", "Read"]


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


def _codex_answer(printed: str) -> str:
    said = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    texts = [
        event["item"]["text"]
        for event in said
        if event["type"] == "item.completed" and event["item"]["type"] == "agent_message"
    ]
    return str(texts[-1])


CODEX: Final = Program(
    name="codex",
    package="@openai/codex",
    protocol="responses",
    prepare=_codex_settings,
    command=lambda modules, question: [
        str(modules / ".bin" / "codex"),
        *("exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", question),
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
    said = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return str([event["part"]["text"] for event in said if event["type"] == "text"][-1])


OPENCODE: Final = Program(
    name="opencode",
    package="opencode-ai",
    protocol="chat",
    prepare=_opencode_settings,
    command=lambda modules, question: [
        str(modules / ".bin" / "opencode"),
        *("run", "--format", "json", question),
    ],
    environment=lambda url: {},
    answer=_opencode_answer,
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
    command=lambda modules, question: [str(modules / ".bin" / "qwen"), "-p", question, "--yolo"],
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
