from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.domain.engine import Freshness
from dynbranch.engine_agent.engines.tool import ToolEngine, reads_of
from dynbranch.engine_agent.engines.tools_file import Tool, ToolsFileError, read_tools

TOOLS = """
tools:
  search:
    url: http://127.0.0.1:1/search
    description: Finds passages.
    source: passages
    freshness: writes_reported
    code_version: "3"
  clock:
    url: http://127.0.0.1:1/clock
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "tools.yaml"
    file.write_text(text, encoding="utf-8")
    return file


async def test_a_tools_file(tmp_path: Path) -> None:
    tools = read_tools(written(tmp_path, TOOLS))
    assert tools.by_name["search"].freshness is Freshness.WRITES_REPORTED
    assert tools.bypass_url == "http://127.0.0.1:1"
    facts = await ToolEngine(tools, 3).start()
    clock, search = facts.tools
    assert (search.source, search.description, facts.slots) == ("passages", "Finds passages.", 3)
    assert dict(search.fingerprint.facts)["code_version"] == "3"
    assert "instance" not in dict(search.fingerprint.facts)
    assert dict(clock.fingerprint.facts)["instance"] == "http://127.0.0.1:1/clock"


def test_urls_of_different_shapes_have_no_common_bypass(tmp_path: Path) -> None:
    text = "tools: {a: {url: 'http://x/a'}, b: {url: 'http://y/b'}}"
    assert read_tools(written(tmp_path, text)).bypass_url == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tools: {a: {url: 'ftp://x'}}", "http URL"),
        ("tools: {a: {}}", "url"),
        ("tools: {a: {url: 'http://x', colour: red}}", "colour"),
        ("tools: {a: {url: 'http://x', freshness: versioned}}", "source"),
        ("tools: {a: {url: 'http://x', freshness: immutable, source: s}}", "code_version"),
        ("tools: {a: {url: 'http://x', freshness: sometimes, source: s}}", "freshness"),
        ("tools: {a: {url: 'http://x', source: 'a/b'}}", "source"),
        ("tools: {'a b': {url: 'http://x'}}", "named"),
        ("tools: [", "tools.yaml"),
        ("", "tools.yaml"),
        ("tools: {a: {url: 'http://h/a', max_result_bytes: 60000000}}", "less than or equal to"),
    ],
)
def test_a_wrong_tools_file_says_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ToolsFileError, match=complaint):
        read_tools(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tools:\n  a: {{ url }}\n", 2),
        ("tools:\n  ? [a]\n  : b\n", 2),
        ("tools:\n  a: !!bool x\n", 2),
        ("tools:\n  a: {url: 'http://x', timeout_s: " + "9" * 6000 + "}\n", 2),
        ("tools:\n  a: {url: 'http://x', description: 2020-99-99}\n", 2),
        ("tools:\n  a: &a [*a]\n", 2),
        ("tools:\n  a: {url: 'http://x'}\n  a: {url: 'http://y'}\n", 3),
        ("tools:\n  'a b': {url: 'http://x'}\n", 2),
        ("tools: " + "[" * 100 + "]" * 100, 1),
        ("", 1),
    ],
)
def test_any_flaw_of_a_tools_file_is_told_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ToolsFileError) as caught:
        read_tools(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")


def test_a_tools_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_bytes(b"tools: \xff")
    with pytest.raises(ToolsFileError, match="utf-8"):
        read_tools(tmp_path / "tools.yaml")


def test_a_missing_tools_file(tmp_path: Path) -> None:
    with pytest.raises(ToolsFileError):
        read_tools(tmp_path / "none.yaml")


SOURCED = Tool(url="http://x/t", source="passages", freshness=Freshness.VERSIONED, code_version="1")


@pytest.mark.promise("I3")
@pytest.mark.parametrize(
    ("header", "reads"),
    [
        ("passages/b, passages/a", ("passages/a", "passages/b")),
        ("passages/a%2Cb,passages/%C3%A9", ("passages/a,b", "passages/é")),
        ("passages/*", ("passages/*",)),
        ("other/x", ("other/x",)),
        ("", ("passages/*",)),
        (" , ", ("passages/*",)),
        ("passages", ("passages/*",)),
        ("passages/a,nonsense", ("passages/*",)),
        ("passages/%FF", ("passages/*",)),
        ("passages/a=1.7", ("passages/*",)),
        ("passages/a%3D1.7", ("passages/a=1.7",)),
    ],
)
def test_reads_that_can_not_be_understood_are_the_whole_source(header: str, reads: tuple[str, ...]) -> None:
    assert reads_of(SOURCED, header) == reads


def test_immutable_and_sourceless_tools_have_no_reads() -> None:
    immutable = Tool(url="http://x", source="s", freshness=Freshness.IMMUTABLE, code_version="1")
    assert reads_of(immutable, "s/a") is None
    assert reads_of(Tool(url="http://x"), "s/a") is None
