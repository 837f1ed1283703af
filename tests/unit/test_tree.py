"""The tree keeps its own rules: what the linters cannot say."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PORTIONS = ("lib", "services", "apps")
BANNED_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py", "manager.py"}
LONGEST_FILE_LINES = 600
LONGEST_FUNCTION_LINES = 80


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def sources() -> list[Path]:
    return [path for portion in PORTIONS for path in sorted((ROOT / portion).rglob("*.py"))]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_init_hides_a_portion_of_the_namespace() -> None:
    assert not [named(path) for path in sources() if path.name == "__init__.py"]


def test_names_carry_content() -> None:
    assert not [named(path) for path in sources() if path.name in BANNED_NAMES]


def test_a_file_is_read_in_a_sitting() -> None:
    long = {
        named(path): n for path in sources() if (n := len(path.read_text().splitlines())) > LONGEST_FILE_LINES
    }
    assert not long


def test_a_function_fits_a_screen() -> None:
    long = {
        f"{named(path)}:{node.name}": lines
        for path in sources()
        for node in functions(path)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION_LINES
    }
    assert not long


def test_every_task_has_an_owner() -> None:
    loose = [
        f"{named(path)}:{number}"
        for path in sources()
        if path.relative_to(ROOT) != Path("lib/dynbranch/runtime/tasks.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"^\s*(asyncio\.(create_task|ensure_future)|loop\.create_task)\(", line)
    ]
    assert not loose, "a task whose result nobody keeps"


def test_cores_take_time_and_chance_as_arguments() -> None:
    pattern = re.compile(
        r"\btime\.(time|monotonic|perf_counter)|datetime\.now|\brandom\.|os\.urandom|uuid\.uuid"
    )
    impure = [
        f"{named(path)}:{number}"
        for path in sources()
        if "core" in path.parts or "naming" in path.parts or "domain" in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not impure


@pytest.mark.parametrize("portion", PORTIONS)
def test_types_are_shipped(portion: str) -> None:
    base = ROOT / portion
    folders = {folder for path in base.rglob("*.py") for folder in path.relative_to(base).parents}
    tops = {base / folder for folder in folders if folder.parent.name == "dynbranch"}
    assert tops
    assert not [named(top) for top in tops if not (top / "py.typed").exists()]


def promises() -> dict[str, str]:
    return {
        item["id"]: item["text"]
        for item in tomllib.loads((ROOT / "docs" / "promises.toml").read_text())["promise"]
    }


def promised_in_tests() -> set[str]:
    pattern = re.compile(r"""mark\.promise\(\s*((?:["'][\w.]+["'],?\s*)+)""")
    found: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for match in pattern.finditer(path.read_text()):
            found.update(re.findall(r"[\w.]+", match[1]))
    return found


def test_every_promise_has_a_test_and_every_test_names_a_known_promise() -> None:
    assert set(promises()) == promised_in_tests()


def test_the_lock_file_carries_no_address() -> None:
    assert not re.search(r"https?:|file:", (ROOT / "requirements.lock").read_text())


def test_relative_links_in_the_documentation_lead_somewhere() -> None:
    dead = []
    for path in tracked(".md"):
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text()):
            if not (path.parent / target).exists():
                dead.append(f"{named(path)} -> {target}")
    assert not dead
