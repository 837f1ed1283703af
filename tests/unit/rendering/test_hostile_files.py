"""Files that nobody means well with, or that a slip of the pen made: each is refused with its line, and at
once. None of them ends who reads it, or keeps it from the file beside it."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest
from dynbranch.domain.ids import Instant
from dynbranch.rendering.constants import taken_apart
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.problems import TemplateInvalid
from dynbranch.rendering.reading import parse_template
from dynbranch.rendering.schema import MAX_PARTS, MAX_TAGS
from dynbranch.rendering.watching import MAX_FILE_BYTES, Adopted, Rejected, TemplateFolder, load_template
from dynbranch.rendering.yaml_text import MAX_CHARACTERS, MAX_PROBLEMS, MAX_VALUES, read_yaml

GOOD = """\
workflow_type: small
version: 1
inputs:
  topic: {request: plan, path: $.topic}
stages:
  plan:
    kind: chat
    request: '{"x": 1}'
"""


def stages(count: int) -> str:
    return GOOD + "".join(f"  s{number}: {{kind: chat, request: 'x'}}\n" for number in range(count))


def asking(request: str) -> str:
    return GOOD.replace("""'{"x": 1}'""", f"'{request}'")


HOSTILE = {
    "a value of Jinja without quotes": (GOOD.replace("version: 1", "version: {{ topic }}"), 2, "into quotes"),
    "a list as a key": ("? [a, b]\n: c\n", 1, "a key must be a text"),
    "a mapping as a key": ("a: 1\n{{a: b}: c}: d\n", 2, "a key must be a text"),
    "a tag of Python": ("a: !!python/object/apply:os.system [x]\n", 1, "tags are not read"),
    "a tag that is no truth value": ("a: 1\nb: !!bool x\n", 2, "tags are not read"),
    "a tag without a name": ("a: ! x\n", 1, "tags are not read"),
    "an alias": ("a: &a [x]\nb: *a\n", 2, "aliases are not read"),
    "a merge": ("<<: {a: b}\n", 1, "merges are not read"),
    "a value that is an equals sign": ("workflow_type: =\n", 1, "put a text into quotes"),
    "a number of many digits": (GOOD.replace("version: 1", "version: " + "9" * 6000), 2, "4300 digits"),
    "a number of no digits": (GOOD.replace("version: 1", "version: 0b_"), 2, "can not be read"),
    "a number of many digits to another base": ("a: 1\nb: 0x" + "f" * 9000 + "\n", 2, "too large"),
    "a number without end": ("a: -.inf\n", 1, "too large"),
    "no number": ("a: [.nan]\n", 1, "too large"),
    "a day that never was": (GOOD.replace("version: 1", "version: 2020-99-99"), 2, "month"),
    "sixty to a high power": ("a: " + ":".join(["59"] * 3000) + ".5\n", 1, "too large"),
    "deep brackets": ("a: " + "[" * 900 + "]" * 900, 1, "levels"),
    "deeper brackets": ("[" * 50_000 + "]" * 50_000, 1, "not YAML"),
    "deep mappings": ("{a: " * 50_000, 1, "levels"),
    "very many keys": ("".join(f"k{number}: 1\n" for number in range(MAX_VALUES)), 16384, "keys and values"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "not YAML"),
    "half of a surrogate pair": ("a: \ud800\n", 1, "not YAML"),
    "a large text": (GOOD + "#" + "x" * MAX_CHARACTERS, 1, "characters"),
    "very many stages": (stages(MAX_PARTS), 6, f"at most {MAX_PARTS} items"),
    "a long expression": (GOOD.replace("path: $", f"regex: {'a?' * 300_000}, path: $"), 4, "characters"),
    "a long path": (GOOD.replace("$.topic", "$" + ".a" * 100_000), 4, "characters"),
    "very many tags": (asking("{{ topic }}" * (MAX_TAGS + 1)), 1, "tags"),
    "tags that never end": (asking("{{" * 200_000), 1, "tags"),
    "loops beyond Python's": (
        asking("{% for a in x %}" * 40 + "{% endfor %}" * 40),
        8,
        "can not be compiled",
    ),
    "conditions beyond Python's": (
        asking("{% if 1 %}" * 990 + "{% endif %}" * 990),
        8,
        "can not be compiled",
    ),
    "signs beyond Python's": (asking("{{ " + "-" * 20_000 + "1 }}"), 8, "can not be compiled"),
}


@pytest.mark.parametrize(("text", "line", "says"), HOSTILE.values(), ids=HOSTILE)
def test_it_is_refused_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(TemplateInvalid) as caught:
        parse_template(text, "small.yaml", JinjaRenderer)
    told = caught.value.message.split("\n")
    assert any(one.startswith(f"small.yaml:{line}: ") and says in one for one in told), told


def test_of_many_problems_some_are_told_each_in_few_words() -> None:
    with pytest.raises(TemplateInvalid) as caught:
        parse_template("".join(f"{'k' * 900}{number}: 1\n" for number in range(1000)), "small.yaml")
    told = caught.value.message.split("\n")
    assert len(told) == MAX_PROBLEMS + 1
    assert all(len(one) < 600 for one in told)
    assert told[-1].endswith("… and more")


def test_keys_are_texts_as_they_are_written() -> None:
    """``on`` and ``1`` are words to who writes them, whatever YAML takes them for."""
    read = read_yaml("on: 1\n2: x\nnull: [a]\n")
    assert read.value == {"on": 1, "2": "x", "null": ["a"]}
    assert not read.problems


def test_a_file_that_can_not_be_read_harms_nobody(tmp_path: Path) -> None:
    """Neither the file beside it, nor the version of it that is in force, nor who reads."""
    (tmp_path / "z-good.yaml").write_text(GOOD.replace("small", "other"))
    file = tmp_path / "a.yaml"
    file.write_text(GOOD)
    folder = TemplateFolder(tmp_path, poll_s=0.0)
    assert [type(change) for change in folder.poll(Instant(0.0))] == [Adopted, Adopted]
    for number, (text, line, _) in enumerate(HOSTILE.values(), 1):
        data = text.encode("utf-8", "surrogatepass")
        file.write_bytes(data)
        os.utime(file, ns=(number, number))
        (change,) = folder.poll(Instant(float(number)))
        assert isinstance(change, Rejected)
        assert change.kept
        assert f"{file}:" in change.reason
        if b"\xed" not in data:
            assert f"{file}:{line}: " in change.reason
        assert set(folder.in_force) == {"small", "other"}


def test_what_no_reader_foresaw_is_the_files_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(GOOD)

    def fails(template: object) -> None:
        raise KeyError("somewhere")

    monkeypatch.setattr("dynbranch.rendering.watching.Follower", fails)
    with pytest.raises(TemplateInvalid, match=re.escape(f"{file}:1: ") + ".*KeyError.*somewhere"):
        load_template(file)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    (tmp_path / "itself.yaml").symlink_to("itself.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "bytes.yaml").write_bytes(b"a: 1\nb: \xff\n")
    (tmp_path / "good.yaml").write_text(GOOD)
    folder = TemplateFolder(tmp_path)
    told = {
        change.file.name: change.reason if isinstance(change, Rejected) else ""
        for change in folder.poll(Instant(0.0))
    }
    assert told.pop("good.yaml") == ""
    assert told.pop("bytes.yaml").startswith(f"{tmp_path}/bytes.yaml:2: not UTF-8")
    assert "larger than" in told.pop("large.yaml")
    assert set(told) == {"pipe.yaml", "folder.yaml", "endless.yaml"}
    assert "Is a directory" in told.pop("folder.yaml")
    assert all("this is no file" in reason for reason in told.values())


def test_a_folder_holds_no_more_than_one_message_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynbranch.rendering.watching.MAX_FOLDER_CHARACTERS", 2 * len(GOOD) - 1)
    for name in ("s-one", "s-two"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.replace("small", name))
    first, second = TemplateFolder(tmp_path).poll(Instant(0.0))
    assert isinstance(first, Adopted)
    assert isinstance(second, Rejected)
    assert "more than" in second.reason


def test_a_text_is_taken_apart_as_jinja_does() -> None:
    tags = re.compile(r"(\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\})", re.DOTALL)
    chance = random.Random(7)
    for _ in range(5000):
        text = "".join(chance.choice("{}%#a\n") for _ in range(chance.randrange(14)))
        assert taken_apart(text) == tags.split(text)
