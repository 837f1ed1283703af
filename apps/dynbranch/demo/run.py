"""The main job on real input: with DynBranch disabled (twice), enabled, again, and after a write."""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from dynbranch.demo.harness import Harness, models
from dynbranch.demo.passages import SOURCE
from dynbranch.demo.records import questions, routing_requests
from dynbranch.demo.report import Arm, Gone, Report, Written
from dynbranch.demo.stack import Stack, StackOptions
from dynbranch.demo.tracefile import TraceReceiver
from dynbranch.demo.workloads import RETRIEVAL, RETRIEVAL_CALLS, ROUTING_CALLS, Task, perform, tasks

WRITES = 3
EDITION = "Second edition. "
"""What a write puts before a passage's text."""

TRACE_FILE = "traces.jsonl"
_TIMEOUT_S = 60.0


class WriteFailed(Exception):
    """The passage store did not acknowledge a write."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many records to run; None for all that ship."""

    routing: int | None = None
    questions: int | None = None

    @property
    def requests(self) -> int:
        """How many distinct requests these records make, at most."""
        routing, reading = routing_requests()[: self.routing], questions()[: self.questions]
        return ROUTING_CALLS * len(routing) + RETRIEVAL_CALLS * len(reading)


class Watcher:
    """What a run tells while it goes on. This one keeps quiet."""

    def waiting_for(self, missing: str) -> None:
        """The stack is not ready yet."""

    def ready(self, seconds: float, tasks: int) -> None:
        """The stack took so long to start; so many tasks follow."""

    def arm(self, title: str) -> None:
        """A pass over the records begins."""

    def task_done(self) -> None:
        """One record is through."""


def run_demo(options: StackOptions, *, size: Size, watcher: Watcher, seed: int = 1) -> Report:
    """Start a stack, run every pass, stop the stack.

    Raises ProcessDied, StartTimedOut, WriteFailed, ToolFailed and the errors of the ``openai`` client.
    """
    path = options.state_dir / TRACE_FILE
    begin = time.perf_counter()
    with TraceReceiver(path) as receiver:
        options = replace(options, traces_endpoint=receiver.endpoint, floor_gateway=True)
        with Stack(options) as stack:
            stack.wait_ready(tell=watcher.waiting_for)
            todo = tasks(routing_requests()[: size.routing], questions()[: size.questions])
            reading = [task for task in todo if task.workload == RETRIEVAL]
            watcher.ready(time.perf_counter() - begin, 5 * len(todo) + len(reading))
            report = _Passes(stack, todo, watcher, random.Random(seed)).run(reading)
        # Services send their last spans while they stop: only now is the file complete.
    return replace(report, traces=str(path), seconds=time.perf_counter() - begin)


class _Passes:
    def __init__(self, stack: Stack, todo: Sequence[Task], watcher: Watcher, chance: random.Random) -> None:
        self._stack = stack
        self._todo = todo
        self._watcher = watcher
        self._chance = chance
        self._model = models(stack.url)[0]
        self._trace_id = ""

    def run(self, reading: Sequence[Task]) -> Report:
        todo, enabled, floor = self._todo, self._stack.url, self._stack.floor_url
        floor_arm = self._pass("floor", "disabled (floor)", floor, todo)
        control = self._pass("control", "disabled (control)", floor, todo)
        first = self._pass("first", "first pass", enabled, todo)
        second = self._pass("second", "second pass", enabled, todo)
        written = self._write(first)
        after = self._pass("after", f"after {len(written)} writes", enabled, todo)
        fresh = self._pass("fresh_floor", "after, disabled", floor, reading)
        return Report(
            floor=floor_arm,
            control=control,
            first=first,
            second=second,
            after=after,
            fresh_floor=fresh,
            writes=written,
            gone=tuple(self._gone(name) for write in written for name in write.names),
            records=len(todo),
            model=self._model,
            trace_id=self._trace_id,
        )

    def _pass(self, name: str, title: str, url: str, todo: Sequence[Task]) -> Arm:
        self._watcher.arm(title)
        harness = Harness(url, self._model)
        calls = []
        try:
            for task, trace_id, made in perform(harness, todo, run=name, chance=self._chance):
                calls.extend(made)
                if name == "first" and task.workload == RETRIEVAL and not self._trace_id:
                    self._trace_id = trace_id
                self._watcher.task_done()
                self._stack.check()
        finally:
            harness.close()
        return Arm(name, title, tuple(calls))

    def _write(self, first: Arm) -> tuple[Written, ...]:
        """Write three passages, each the best one of some question, spread over the questions."""
        reads = [call for call in first.calls if call.stage == "get" and call.key.endswith("get-0")]
        step = max(1, len(reads) // WRITES)
        chosen = {call.reads[0]: call.text for call in reads[::step]}
        return tuple(self._put(record, text) for record, text in list(chosen.items())[:WRITES])

    def _put(self, record: str, text: str) -> Written:
        id = record.removeprefix(f"{SOURCE}/")
        passage = json.loads(text)
        answer = _json(
            f"{self._stack.passages_url}/passages/{quote(id, safe='')}",
            method="PUT",
            body={"text": EDITION + passage["text"]},
        )
        gone = answer["invalidated"]
        return Written(record, passage["title"], answer["version"], gone["entries"], tuple(gone["names"]))

    def _gone(self, name: str) -> Gone:
        went = _json(f"{self._stack.url}/dynbranch/v1/entries/{name}")["invalidations"]
        if not went:
            return Gone(name, "", "forgotten")
        last = went[0]
        if last["record"]:
            return Gone(name, last["label"], f"read {last['record']}")
        return Gone(name, last["label"], f"made from {last['lost_producer']['name']}", direct=False)


def _json(url: str, *, method: str = "GET", body: Mapping[str, Any] | None = None) -> Any:
    """Raises WriteFailed with what the service said."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data=data, method=method, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise WriteFailed(f"{method} {url}: {error.code} {error.read()[:300]!r}") from error
