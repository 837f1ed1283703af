"""``dynbranch csl check``, ``backup`` and ``restore``, and directories that were copied by hand."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.cli.main import app
from dynbranch.csl import copies
from dynbranch.csl.core import rows
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.rows import Node
from dynbranch.csl.core.store import Batch, View
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.rocks import DataDirectory, RocksKeyValue, Sizes
from dynbranch.csl.service import opened_shell
from dynbranch.csl.shell import Shell
from dynbranch.domain.ids import DemandId, GenerationId, RecordId, UnixMs, Version
from dynbranch.domain.reuse import (
    Commit,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Identity,
    Level,
    Miss,
    ReadScope,
)
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from typer.testing import CliRunner

SIZES = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
DOCS = ReadScope(sources=("docs",))
PURE = ReadScope()


def with_shell(path: Path, act: Callable[[Shell], object]) -> object:
    """Serve from a directory while ``act`` runs; ``act`` gives a coroutine."""

    async def serve() -> object:
        async with opened_shell(
            DataDirectory(path), limits=Limits(), sizes=SIZES, clock=SystemClock(), new_id=new_id
        ) as (shell, _):
            return await act(shell)  # type: ignore[misc]

    return asyncio.run(serve())


async def demand(shell: Shell, what: str, scope: ReadScope = DOCS) -> DemandOutcome:
    ids = (DemandId(new_id()), GenerationId(new_id()))
    return await shell.demand(
        Demand(ids[0], name_of(what), Identity(), scope, GenerationRef(ids[1], "agent:1"))
    )


async def store(shell: Shell, what: str, *reads: str) -> None:
    outcome = await demand(shell, what, DOCS if reads else PURE)
    assert isinstance(outcome, Miss) and outcome.lease is not None
    commit = Commit(
        outcome.lease, what.encode(), digest(what), Level.SOURCED, 1.0, reads=tuple(map(RecordId, reads))
    )
    assert isinstance(await shell.commit(commit), Committed)


async def fill(shell: Shell) -> None:
    await store(shell, "reader", "docs/1")
    await store(shell, "pure")


async def served(shell: Shell) -> set[str]:
    return {what for what in ("reader", "pure") if isinstance(await demand(shell, what), Hit)}


async def epoch(shell: Shell) -> int:
    return (await shell.stats()).version.epoch


async def write(shell: Shell) -> int:
    return (await shell.write([RecordId("docs/1")], reporter="test")).invalidated_entries


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with_shell(path, fill)
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["csl", *arguments])
    return result.exit_code, result.output


def found_problems(directory: Path) -> list[str]:
    status, output = run("check", str(directory), "--json")
    answer = json.loads(output)
    assert (status == 0) == answer["whole"]
    return list(answer["problems"])


def plant(directory: Path, fault: Callable[[View], dict[bytes, bytes | None]]) -> None:
    opened = RocksKeyValue(directory / "rocks", sizes=SIZES)
    opened.apply(Batch(fault(opened)))
    opened.sync()
    opened.close()


def orphan_index_row(view: View) -> dict[bytes, bytes | None]:
    return {rows.reader_key(RecordId("docs/7"), Node(name_of("stray"), 0)): b""}


def dangling_derivation(view: View) -> dict[bytes, bytes | None]:
    return {
        rows.derivation_key(Node(name_of("stray"), 0)): view.get(
            rows.derivation_key(Node(name_of("pure"), 0))
        )
    }


def wrong_byte_counter(view: View) -> dict[bytes, bytes | None]:
    meta = rows.read_meta(view)
    return {rows.META: rows.pack_meta(replace(meta, payload_bytes=meta.payload_bytes + 1))}


def read_set_not_current(view: View) -> dict[bytes, bytes | None]:
    version = Version(rows.read_meta(view).epoch, 1 << 40)
    return {rows.written_key(RecordId("docs/1")): rows.pack_version(version)}


def missing_age(view: View) -> dict[bytes, bytes | None]:
    return {key: None for key, _ in view.scan(rows.AGES)}


@pytest.mark.promise("C1.check")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (orphan_index_row, "which no derivation says"),
        (dangling_derivation, "has no entry"),
        (wrong_byte_counter, "payload bytes"),
        (read_set_not_current, "read an older version"),
        (missing_age, "not in the index of ages"),
    ],
)
def test_the_check_finds_a_planted_fault(
    directory: Path, fault: Callable[[View], dict[bytes, bytes | None]], said: str
) -> None:
    assert found_problems(directory) == []
    plant(directory, fault)
    assert any(said in problem for problem in found_problems(directory))
    status, output = run("check", str(directory))
    assert status == 1 and said in output


@pytest.mark.promise("C1.check")
def test_the_check_changes_nothing_that_is_served(directory: Path) -> None:
    before = with_shell(directory, epoch)
    assert found_problems(directory) == []
    assert with_shell(directory, epoch) == before
    assert with_shell(directory, served) == {"reader", "pure"}


def test_a_directory_in_use_or_not_there_is_refused(directory: Path, tmp_path: Path) -> None:
    status, output = run("check", str(tmp_path / "nothing"))
    assert status == 1 and "no directory" in output
    held = RocksKeyValue(directory / "rocks", sizes=SIZES)
    try:
        for arguments in (("check", str(directory)), ("backup", str(directory), str(tmp_path / "copy"))):
            assert run(*arguments)[0] == 1
    finally:
        held.close()


@pytest.mark.promise("C1.restore")
def test_a_restored_backup_serves_nothing_that_rests_on_a_read(directory: Path, tmp_path: Path) -> None:
    assert run("backup", str(directory), str(tmp_path / "copy"))[0] == 0
    before = with_shell(directory, epoch)
    assert with_shell(directory, write) == 1
    assert run("restore", str(tmp_path / "copy"), str(directory))[0] == 0
    assert with_shell(directory, served) == {"pure"}
    after = with_shell(directory, epoch)
    assert isinstance(before, int) and isinstance(after, int) and after > before
    assert len(list((directory / "quarantine").iterdir())) == 1
    assert found_problems(directory) == []


@pytest.mark.promise("C1.restore")
def test_a_backup_goes_to_an_empty_place_too_and_is_checked_before(directory: Path, tmp_path: Path) -> None:
    copy, fresh = tmp_path / "copy", tmp_path / "fresh"
    assert run("backup", str(directory), str(copy))[0] == 0
    assert run("backup", str(directory), str(copy))[0] == 1, "a backup never replaces another"
    assert run("restore", str(copy), str(fresh))[0] == 0
    assert with_shell(fresh, served) == {"pure"}
    tables = sorted((copy / "rocks").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(tables[-1].read_bytes())
    data[10] ^= 1
    tables[-1].unlink()
    tables[-1].write_bytes(bytes(data))
    assert run("restore", str(copy), str(tmp_path / "other"))[0] == 1
    assert run("restore", str(tmp_path / "nothing"), str(fresh))[0] == 1
    assert with_shell(fresh, served) == {"pure"}


def test_backup_and_restore_tell_programs_too(directory: Path, tmp_path: Path) -> None:
    copy, fresh = tmp_path / "copy", tmp_path / "fresh"
    status, said = run("backup", str(directory), str(copy), "--json")
    made = json.loads(said)
    assert status == 0 and made["backup"] == str(copy) and made["entries"] > 0
    status, said = run("restore", str(copy), str(fresh), "--json")
    restored = json.loads(said)
    assert status == 0 and restored["directory"] == str(fresh) and restored["entries"] == made["entries"]


@pytest.mark.promise("C1.restore")
def test_a_restore_forgets_the_damage_of_a_database_that_is_gone(directory: Path, tmp_path: Path) -> None:
    assert run("backup", str(directory), str(tmp_path / "copy"))[0] == 0
    DataDirectory(directory).mark_damaged("by hand")
    shutil.rmtree(directory / "rocks")
    assert run("restore", str(tmp_path / "copy"), str(directory))[0] == 0
    assert found_problems(directory) == []
    assert with_shell(directory, served) == {"pure"}


def test_a_backup_into_the_database_itself_is_refused(directory: Path) -> None:
    before = sorted((directory / "rocks").iterdir())
    for target in (directory / "rocks" / "copy", directory / "rocks" / ".." / "rocks" / "a" / "b"):
        status, output = run("backup", str(directory), str(target))
        assert status == 1 and "inside" in output
    assert sorted((directory / "rocks").iterdir()) == before


@pytest.mark.parametrize(("step", "said", "unsaid"), [(1, "newer", "older"), (-1, "older", "newer")])
def test_the_check_tells_a_newer_format_from_an_older(
    directory: Path, step: int, said: str, unsaid: str
) -> None:
    def other_format(view: View) -> dict[bytes, bytes | None]:
        meta = view.get(rows.META)
        assert meta is not None
        return {rows.META: (rows.FORMAT + step).to_bytes(2, "big") + meta[2:]}

    plant(directory, other_format)
    status, output = run("check", str(directory))
    assert status == 1 and said in output and unsaid not in output


@pytest.mark.promise("C1.restore")
def test_a_whole_directory_that_was_copied_back_begins_a_new_epoch(directory: Path, tmp_path: Path) -> None:
    """With the file beside it: nothing in the files says that time has gone back, but their places do."""
    shutil.copytree(directory, tmp_path / "copy", copy_function=shutil.copy2)
    assert with_shell(directory, write) == 1
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "copy", directory, copy_function=shutil.copy2)
    assert with_shell(directory, served) == {"pure"}


@pytest.mark.promise("C1.restore")
def test_a_directory_that_is_renamed_goes_on(directory: Path, tmp_path: Path) -> None:
    before = with_shell(directory, epoch)
    directory.rename(tmp_path / "moved")
    assert with_shell(tmp_path / "moved", served) == {"reader", "pure"}
    assert with_shell(tmp_path / "moved", epoch) == before


@pytest.mark.promise("C1.restore")
def test_restores_after_random_writes_serve_nothing_stale(tmp_path: Path) -> None:
    chance = random.Random(7)
    whats = [f"n{number}" for number in range(8)]

    async def more(shell: Shell) -> None:
        for _ in range(20):
            what = chance.choice(whats)
            if chance.random() < 0.3:
                await shell.write([RecordId(f"docs/{chance.randrange(4)}")], reporter="test")
            elif isinstance(await demand(shell, what), Miss):
                await shell.release_leases([])
                await store_again(shell, what, f"docs/{chance.randrange(4)}")

    async def hits(shell: Shell) -> list[str]:
        return [what for what in whats if isinstance(await demand(shell, what), Hit)]

    path = tmp_path / "store"
    for turn in range(4):
        with_shell(path, more)
        copy = tmp_path / f"copy{turn}"
        assert run("backup", str(path), str(copy))[0] == 0
        with_shell(path, more)
        assert run("restore", str(copy), str(path))[0] == 0
        assert with_shell(path, hits) == []


async def store_again(shell: Shell, what: str, read: str) -> None:
    outcome = await shell.demand(
        Demand(
            DemandId(new_id()),
            name_of(what),
            Identity(),
            DOCS,
            GenerationRef(GenerationId(new_id()), "agent:1"),
            may_hit=False,
        )
    )
    assert isinstance(outcome, Miss) and outcome.lease is not None
    await shell.commit(Commit(outcome.lease, b"x", digest("x"), Level.SOURCED, 1.0, reads=(RecordId(read),)))


@pytest.mark.promise("C1.restore")
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_first_start_after_a_restore_that_is_interrupted_serves_nothing_stale(
    tmp_path: Path, by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with_shell(data, fill)
    if by_hand:
        shutil.copytree(data, copy)
    else:
        copies.back_up(DataDirectory(data), copy, SIZES, UnixMs(0))
    with_shell(data, lambda shell: shell.write([RecordId("docs/1")], reporter="test"))
    if by_hand:
        shutil.rmtree(data)
        shutil.copytree(copy, data)
    else:
        copies.restore(copy, DataDirectory(data), SIZES, UnixMs(1))

    async def die(self: Shell, epoch: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Shell, "begin_epoch", die)
        with pytest.raises(KeyboardInterrupt):
            with_shell(data, served)
    assert with_shell(data, served) == {"pure"}


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_folder_without_a_store_is_said_to_be_one(tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    told = CliRunner().invoke(app, ["csl", command, str(tmp_path / "empty"), str(tmp_path / "to")])
    assert told.exit_code == 1
    assert "empty holds no " in told.output
    assert "set aside" not in told.output
    assert not list((tmp_path / "to").glob("*"))
