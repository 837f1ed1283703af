"""Who asks, where a harness tells it in its own words: coding agents send no headers of DynBranch's.

What is derived here groups arrivals for coordinates and predictors. It is no part of a name and authorises
nothing. A tag, ``x-dynbranch-…``, always stands before it. Header names are lower case.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dynbranch.naming.document import Document, Json, Number, emit

MAX_ID_CHARACTERS: Final = 200
MAIN_AGENT: Final = "main"
_ID: Final = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID_CHARACTERS}}}")
_TYPE: Final = "x-dynbranch-workflow-type"
_WORKFLOW: Final = "x-dynbranch-workflow"
_AGENT: Final = "x-dynbranch-agent"
_PARENT: Final = "x-dynbranch-parent"


@dataclass(frozen=True, slots=True)
class Who:
    """An empty string means not told. ``parent_id`` is the agent that started this one."""

    harness: str
    workflow_type_id: str = ""
    workflow_id: str = ""
    agent_id: str = ""
    parent_id: str = ""

    def told_in(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers, with a tag for each of these that has none."""
        derived = (
            (_TYPE, self.workflow_type_id),
            (_WORKFLOW, self.workflow_id),
            (_AGENT, self.agent_id),
            (_PARENT, self.parent_id),
        )
        return {**{tag: text for tag, text in derived if text}, **headers}


def who_asks(headers: Mapping[str, str], request: Json) -> Who | None:
    """``request`` is in the form of Chat Completions. None: no harness that is known here."""
    harness = harness_in(headers)
    if harness is None or not isinstance(request, dict):
        return None
    known = _IDENTITIES[harness](headers, request)
    # A tagged type is not derived first: that is most of the work.
    kind = "" if headers.get(_TYPE) else workflow_type(harness, request)
    return Who(harness, kind, known.workflow_id, known.agent_id, known.parent_id)


def harness_in(headers: Mapping[str, str]) -> str | None:
    """By headers that no other program sends."""
    program = headers.get("user-agent", "").partition("/")[0].lower()
    if "x-claude-code-session-id" in headers or program == "claude-cli":
        return "claude-code"
    if headers.get("originator", "").startswith("codex") or "x-codex-turn-metadata" in headers:
        return "codex"
    if "x-deepseek-harness-session-id" in headers:
        return "deepseek-harness"
    match program:
        case "opencode" if "x-session-id" in headers:
            return "opencode"
        case "qwencode":
            return "qwen-code"
        case _:
            return None


def decoded_greedily(document: Document) -> Document:
    """A request in the form of Chat Completions with temperature 0, whatever it asked for. Coding agents ask
    for none, and so get answers that can not be reused."""
    value = document.value
    if not isinstance(value, dict) or value.get("temperature") == Number("0"):
        return document
    greedy: dict[str, Json] = {**value, "temperature": Number("0")}
    if value and "temperature" not in value:
        return Document(document.source.rstrip()[:-1] + b',"temperature":0}', greedy)
    return Document(emit(greedy).encode(), greedy)


# -- each harness's own words --------------------------------------------------------------------------------


def _claude_code(headers: Mapping[str, str], request: dict[str, Json]) -> Who:
    session = _id(headers, "x-claude-code-session-id") or _session_in(request.get("metadata"))
    agent = _id(headers, "x-claude-code-agent-id")
    return Who(
        "claude-code",
        workflow_id=session,
        agent_id=agent or MAIN_AGENT,
        parent_id=MAIN_AGENT if agent else "",
    )


def _codex(headers: Mapping[str, str], _: dict[str, Json]) -> Who:
    return Who(
        "codex",
        workflow_id=_id(headers, "session-id"),
        agent_id=_id(headers, "thread-id"),
        parent_id=_id(headers, "x-codex-parent-thread-id"),
    )


def _opencode(headers: Mapping[str, str], _: dict[str, Json]) -> Who:
    """A session tells its parent and no more, so that the workflow of a sub-agent's own sub-agent is the
    sub-agent."""
    own, parent = _id(headers, "x-session-id"), _id(headers, "x-parent-session-id")
    return Who("opencode", workflow_id=parent or own, agent_id=own, parent_id=parent)


def _qwen_code(_: Mapping[str, str], request: dict[str, Json]) -> Who:
    """It tells nothing: agents differ by what they were told first."""
    first = next((text for role, text in _texts(request) if role == "user"), "")
    digest = hashlib.sha256(b"dynbranch/agent/1")
    for text in (system_prompt(request), first):
        digest.update(len(text).to_bytes(8, "big") + text.encode("utf-8", "replace"))
    return Who("qwen-code", agent_id=digest.hexdigest()[:16])


def _deepseek_harness(headers: Mapping[str, str], _: dict[str, Json]) -> Who:
    session = _id(headers, "x-deepseek-harness-session-id")
    return Who("deepseek-harness", workflow_id=session, agent_id=session)


_IDENTITIES: Final = {
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
    "qwen-code": _qwen_code,
    "deepseek-harness": _deepseek_harness,
}


def _id(headers: Mapping[str, str], name: str) -> str:
    """A harness's own header is no promise to us: what can not be an id is none."""
    text = headers.get(name, "").strip()
    return text if _ID.fullmatch(text) else ""


def _session_in(metadata: Json) -> str:
    """``metadata.user_id`` is a JSON text that holds the session."""
    match metadata:
        case {"user_id": str() as text}:
            try:
                told = json.loads(text)
            except (ValueError, RecursionError):
                return ""
            session = told.get("session_id") if isinstance(told, dict) else None
            return session if isinstance(session, str) and _ID.fullmatch(session) else ""
        case _:
            return ""


# -- the type of a workflow ----------------------------------------------------------------------------------


def workflow_type(harness: str, request: dict[str, Json]) -> str:
    """One for all runs of the same agent: its harness, what it is told to be and which tools it has. Places,
    times and the state of a repository are left out."""
    return _type_of(harness, system_prompt(request), tuple(sorted(_tool_names(request))))


@lru_cache(maxsize=128)
def _type_of(harness: str, prompt: str, tools: tuple[str, ...]) -> str:
    digest = hashlib.sha256(b"dynbranch/workflow-type/1")
    for text in (harness, masked(prompt), *tools):
        digest.update(len(text).to_bytes(8, "big") + text.encode("utf-8", "replace"))
    return f"{harness}/{digest.hexdigest()[:16]}"


_MASKS: Final = (
    # The state of a repository ends the prompt that holds it.
    (re.compile(r"^gitStatus:.*", re.MULTILINE | re.DOTALL), ""),
    (
        re.compile(
            r"^[ \t-]*(?:Is (?:a|directory a) git repo(?:sitory)?|Current branch|Main branch|OS Version)\b.*",
            re.M,
        ),
        "",
    ),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? [A-Z][a-z]{2,8} \d{1,2},? \d{4}\b"), "<date>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?"), "<date>"),
    (re.compile(r"\d{1,2}:\d\d(?::\d\d)?\b"), "<time>"),
    (re.compile(r"(?<![\w/<])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~-]+){2,}[/\\]?"), "<path>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b"), "<digest>"),
)


def masked(prompt: str) -> str:
    """A prompt without what differs from run to run. Never for names."""
    for pattern, word in _MASKS:
        prompt = pattern.sub(word, prompt)
    return prompt.strip()


def system_prompt(request: dict[str, Json]) -> str:
    """All that is said before anybody else speaks."""
    said = []
    for role, text in _texts(request):
        if role not in ("system", "developer"):
            break
        said.append(text)
    return "\n".join(said)


def _texts(request: dict[str, Json]) -> Iterator[tuple[str, str]]:
    messages = request.get("messages")
    for message in messages if isinstance(messages, list) else ():
        match message:
            case {"role": str() as role, "content": str() as text}:
                yield role, text
            case {"role": str() as role, "content": list() as parts}:
                texts = [part["text"] for part in parts if isinstance(part, dict) and "text" in part]
                yield role, "\n".join(text for text in texts if isinstance(text, str))
            case _:
                yield "", ""


def _tool_names(request: dict[str, Json]) -> Iterator[str]:
    tools = request.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        match tool:
            case {"function": {"name": str() as name}}:
                yield name
            case _:
                continue
