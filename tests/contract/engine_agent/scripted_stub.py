"""The stub engine as a llama-server that does what the scripts of the in-memory twin say."""

from __future__ import annotations

from dynbranch.engine_agent.fake import Script
from dynbranch.enginemodel.messages import Pace
from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.script import Reply
from dynbranch.stub_engine.settings import Flavour, StubSettings


def llama_server(*, slots: int) -> StubEngine:
    latency = FixedParameters(slots=slots)
    stub = StubEngine(
        StubSettings(
            flavour=Flavour.LLAMA_SERVER, latency=latency, aliases=("stub-alias",), max_model_len=512
        )
    )
    stub.writer = lambda view: reply_of(Script())
    return stub


def reply_of(script: Script) -> Reply:
    pace = Pace(script.first_s * 1000, script.between_s * 1000)
    return Reply(events=script.items, pace=pace, gate=script.gate, fault=_fault_of(script))


def _fault_of(script: Script) -> Fault | None:
    if script.fail_after is None:
        return None
    failure = script.failure
    if script.fail_after or not failure.http_status:
        return Fault(FaultKind.CUT, after_tokens=script.fail_after)
    return Fault(
        FaultKind.STATUS,
        status=failure.http_status,
        body=failure.body.decode(),
        content_type=failure.content_type,
    )
