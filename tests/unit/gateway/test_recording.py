"""The recorder: bounded, out of the way, and readable for its owner alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from dynbranch.domain.events import Selection
from dynbranch.domain.ids import Name
from dynbranch.domain.reuse import Identity
from dynbranch.domain.template import Output, StageKind, ToolCall
from dynbranch.gateway.record_file import LinesLost, RecordFile
from dynbranch.gateway.recording import (
    MAX_HELD_BYTES,
    MAX_OPEN,
    MAX_OPEN_BYTES,
    Bodies,
    Came,
    Noted,
    Recorder,
    RecordPolicy,
)
from dynbranch.runtime.clock import ManualClock
from dynbranch.templates.traffic import TrafficInvalid, read_arrivals, read_recording, read_traffic
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.promise("G.record")

WHO = Identity(workflow_type_id="picks", workflow_id="w")


def recorder_in(folder: Path, clock: ManualClock | None = None, **policy: object) -> Recorder:
    return Recorder(
        RecordPolicy(folder / "t.jsonl", **{"types": frozenset({"picks"}), **policy}),  # type: ignore[arg-type]
        clock or ManualClock(),
    )


def noted(body: bytes = b"{}", who: Identity = WHO, **more: object) -> Noted:
    return Noted(who, "decide", StageKind.CHAT, "m", body, **more)  # type: ignore[arg-type]


def came(text: str = "x") -> Came:
    return Came("miss", Output(text, finish="stop"), 7, 3, 12.5)


def record(recorder: Recorder, one: Noted, what: Came) -> None:
    recorded = recorder.note(one)
    assert recorded is not None
    recorder.end(recorded, what)


def test_chosen_types_are_recorded_or_all(tmp_path: Path) -> None:
    some, every = recorder_in(tmp_path), recorder_in(tmp_path, types=frozenset({"*"}))
    others = [Identity(workflow_type_id="picks"), Identity(workflow_id="w"), Identity()]
    assert some.wants(WHO) and not any(map(some.wants, others))
    assert every.wants(WHO) and all(map(every.wants, others))


async def test_a_line_has_what_a_replay_needs(tmp_path: Path) -> None:
    clock = ManualClock(5.0, unix_ms=1_700_000_000_000)
    recorder = recorder_in(tmp_path, clock)
    recorded = recorder.note(noted(name=Name(b"\x01\x02"), reads=("passages/1",), parent_id="lead", turn=3))
    assert recorded is not None
    recorder.selected(recorded, [Selection("pick", ("red",))])
    clock.advance(0.25)
    recorder.selected(recorded, [Selection("more", ambiguous=True)])
    recorder.end(recorded, came())
    recorder.selected(recorded, [Selection("late", ("red",))])
    await recorder.flush()
    (one,) = read_traffic(tmp_path / "t.jsonl")
    assert (one.at_ms, one.done_ms) == (1_700_000_000_000, 1_700_000_000_250)
    assert (one.name, one.tenant, one.parent_id, one.turn) == ("0102", "default", "lead", 3)
    assert one.stage == "decide"
    assert one.selections == (Selection("pick", ("red",)), Selection("more", ambiguous=True))
    assert (one.prompt_tokens, one.output_tokens, one.execution_ms, one.failed) == (7, 3, 12.5, False)
    assert one.reads == ("passages/1",) and one.output == Output("x", finish="stop")
    assert (recorder.written, recorder.dropped) == (1, 0)


async def test_a_request_that_never_ends_does_not_hold_up_the_file_for_ever(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    stuck = recorder.note(noted(b"stuck"))
    assert stuck is not None
    for number in range(MAX_OPEN):
        record(recorder, noted(b"%d" % number), came())
    recorder.end(stuck, came("late"))
    await recorder.flush()
    lines = read_traffic(tmp_path / "t.jsonl")
    assert len(lines) == MAX_OPEN + 1 and lines[0].output is None and lines[-1].output is not None


async def test_a_long_answer_does_not_keep_large_requests_out_of_the_file(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    large = b"x" * (MAX_OPEN_BYTES // 8)
    slow = recorder.note(noted(b"slow"))
    assert slow is not None
    for _ in range(16):
        record(recorder, noted(large), came())
        recorder.wrote(("people/1",))
        await recorder.flush()
    recorder.end(slow, came("late"))
    await recorder.flush()
    recording = read_recording(tmp_path / "t.jsonl")
    first, *others = recording.exchanges
    assert (first.body, first.output) == (b"slow", None)
    assert len(others) == len(recording.writes) == 16 and all(one.output is not None for one in others)
    assert recorder.dropped == 0


async def test_hashed_tells_equal_from_different_and_nothing_else(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path, bodies=Bodies.HASHED)
    said = Output("the answer is xyzzy", (ToolCall("look", '{"for":"plugh"}'),), "frobozz", "stop")
    for body in (b"who is xyzzy?", b"who is xyzzy?", b"who is plugh?"):
        recorded = recorder.note(noted(body, reads=("people/xyzzy",)))
        assert recorded is not None
        recorder.selected(recorded, [Selection("pick", ("xyzzy", "plugh"))])
        recorder.end(recorded, Came("miss", said, 7, 3))
    await recorder.flush()
    file = tmp_path / "t.jsonl"
    text = file.read_text()
    assert not [word for word in ("xyzzy", "plugh", "frobozz") if word in text]
    first, second, third = read_arrivals(file)
    assert first.body_sha256 == second.body_sha256 != third.body_sha256
    assert first.selections == third.selections and len(set(first.selections[0].chosen)) == 2
    assert first.reads == second.reads and first.output_tokens == 3
    with pytest.raises(TrafficInvalid, match="RECORD_BODIES=kept"):
        read_traffic(file)


@pytest.mark.parametrize("bodies", list(Bodies))
async def test_writes_stand_in_their_place(bodies: Bodies, tmp_path: Path) -> None:
    clock = ManualClock()
    recorder = recorder_in(tmp_path, clock, bodies=bodies)
    recorder.wrote(("people/*",))
    recorded = recorder.note(noted(reads=("people/xyzzy", "people/*")))
    assert recorded is not None
    clock.advance(1.0)
    recorder.wrote(("people/xyzzy",))
    clock.advance(1.0)
    recorder.end(recorded, came())
    await recorder.flush()
    read = read_recording(tmp_path / "t.jsonl")
    (one,) = read.exchanges
    assert one.reads is not None and [write.records for write in read.writes] == [
        (one.reads[1],),
        (one.reads[0],),
    ]
    assert one.reads[1] == "people/*" and one.reads[0].startswith("people/")
    assert ("xyzzy" in one.reads[0]) == (bodies is Bodies.KEPT)
    assert read.writes[1].at_ms == one.at_ms + 1000
    kinds = [json.loads(line)["kind"] for line in _lines(tmp_path / "t.jsonl")]
    assert kinds == ["write", "chat", "write"]


async def test_what_is_held_is_bounded(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    large = b"x" * (MAX_HELD_BYTES // 2)
    first, second = recorder.note(noted(large)), recorder.note(noted(large))
    assert first is not None and second is not None
    assert recorder.note(noted(b"x")) is None and recorder.dropped == 1
    recorder.wrote(("people/1",))
    assert recorder.dropped == 2
    recorder.end(first, came(""))
    recorder.end(second, came(""))
    assert recorder.note(noted(b"x")) is None, "what waits for the disk counts, too"
    await recorder.flush()
    record(recorder, noted(b"x"), came())
    await recorder.flush()
    assert (recorder.written, recorder.dropped) == (3, 3)


async def test_half_a_surrogate_pair_spoils_nothing(tmp_path: Path) -> None:
    for bodies in Bodies:
        recorder = recorder_in(tmp_path, bodies=bodies)
        record(recorder, noted(b"\xff\xfe"), came("\ud83d"))
        await recorder.flush()
        assert (recorder.written, recorder.dropped) == (1, 0)
    assert len(read_arrivals(tmp_path / "t.jsonl")) == 2


async def test_a_file_that_comes_back_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    recorder = recorder_in(folder)
    for _ in range(3):
        record(recorder, noted(), came())
        await recorder.flush()
    assert (recorder.written, recorder.dropped) == (0, 3)
    assert len([one for one in caplog.records if one.name.endswith("recording")]) == 1
    folder.mkdir()
    record(recorder, noted(), came())
    await recorder.flush()
    assert (recorder.written, recorder.dropped) == (1, 3)


async def test_it_writes_by_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    recorder = recorder_in(tmp_path, clock)
    running = asyncio.get_running_loop().create_task(recorder.run())
    record(recorder, noted(), came())
    while not recorder.written:
        await asyncio.sleep(0)
        clock.advance(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(read_traffic(tmp_path / "t.jsonl")) == 1


# -- the file ----------------------------------------------------------------------------------------------


def kept(folder: Path, files: int) -> list[bytes]:
    """Every line, oldest first."""
    names = [f"t.jsonl.{number}" for number in range(files - 1, 0, -1)] + ["t.jsonl"]
    return [line for name in names if (folder / name).exists() for line in _lines(folder / name)]


def _lines(path: Path) -> list[bytes]:
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return data.splitlines(keepends=True)


@given(
    st.lists(st.lists(st.integers(1, 60), max_size=8), max_size=8),
    st.integers(1, 4),
    st.integers(10, 80),
)
@settings(max_examples=40, deadline=None)
def test_files_stay_small_and_hold_the_newest_lines(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], files: int, file_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("records")
    file = RecordFile(folder / "t.jsonl", file_bytes=file_bytes, files=files)
    fitting: list[bytes] = []
    number = 0
    for batch in batches:
        lines = []
        for size in batch:
            number += 1
            lines.append(b"%d" % number + b"x" * size + b"\n")
        fitting += [line for line in lines if len(line) <= file_bytes]
        too_long = sum(len(line) > file_bytes for line in lines)
        if not too_long:
            file.append(lines)
            continue
        with pytest.raises(LinesLost) as lost:
            file.append(lines)
        assert lost.value.count == too_long
    there = sorted(folder.iterdir())
    assert len(there) <= files
    assert all(one.stat().st_size <= file_bytes and one.stat().st_mode & 0o777 == 0o600 for one in there)
    found = kept(folder, files)
    assert found == fitting[len(fitting) - len(found) :]
    assert bool(found) == bool(fitting)


def test_half_a_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    file = RecordFile(path, file_bytes=2**20, files=1)
    for left, remains in ((b"one\n" + b"x" * 100_000, [b"one\n"]), (b"no line", []), (b"one\n", [b"one\n"])):
        path.write_bytes(left)
        file.append([b"two\n"])
        assert _lines(path) == [*remains, b"two\n"]


def test_others_may_not_read_a_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.touch(mode=0o644)
    RecordFile(path, file_bytes=100, files=1).append([b"one\n"])
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "nowhere"])
def test_what_is_no_file_of_ours_is_left_alone(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "t.jsonl", tmp_path / "other"
    other.write_text("precious\n")
    match kind:
        case "link":
            path.symlink_to(other)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path = tmp_path / "missing" / "t.jsonl"
    with pytest.raises(LinesLost) as lost:
        RecordFile(path, file_bytes=100, files=2).append([b"one\n", b"two\n"])
    assert lost.value.count == 2 and other.read_text() == "precious\n"


_ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from dynbranch.gateway.record_file import LinesLost, RecordFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = RecordFile(Path(sys.argv[1]), file_bytes=2**20, files=2)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
line = b"x" * 299 + b"\\n"
file.append([line] * 3)
lost = []
for _ in range(2):
    try:
        file.append([line] * 2)
    except LinesLost as problem:
        lost.append(problem.count)
assert Path(sys.argv[1]).read_bytes() == line * 3
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append([line])
assert Path(sys.argv[1]).read_bytes() == line * 4
print(lost)
"""


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """The system takes the beginning of a line and refuses the rest, as a full disk does."""
    command: Sequence[str] = (sys.executable, "-c", _ON_A_FULL_DISK, str(tmp_path / "t.jsonl"))
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(said.stdout) == [2, 2]
