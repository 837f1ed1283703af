"""What runs ahead is seen by nobody but the canonical demand that authorises it, whatever else is asked."""

from __future__ import annotations

import asyncio
import json

import pytest
from dynbranch.gateway.tenants import Tenants
from integration.branches.every_await import Awaits, Fault, in_leaping_time
from integration.branches.lives import LEFT
from integration.branches.stack import ROUTE, Answer, Stack, running_stack

KEYS = {"alice": "acme", "amy": "acme", "bob": "other"}
ATTEMPTS = 10
FIRST = f"{LEFT} #1"
"""What only the first execution says: the stage is sampled, and each draw counts."""


async def undecided(stack: Stack) -> asyncio.Future[Answer | None] | None:
    """The shadows stand, and the model still decides. None: nothing runs ahead, as the predictors, which have
    threads of their own, were late."""
    stack.gates[ROUTE] = asyncio.Event()
    route = asyncio.ensure_future(stack.post(ROUTE, key="alice"))
    if not await stack.until(lambda: stack.states("left") == ["shadow", "shadow"], 20.0):
        stack.gates[ROUTE].set()
        await route
        return None
    assert stack.runs[LEFT] == 1
    return route


async def asked_of_everything(stack: Stack) -> dict[str, Answer]:
    """Each way to look, by each key: the workflow's, another one of its tenant, and another tenant's."""
    listed = await stack.ask("GET", "/dynbranch/v1/branches", key="alice")
    assert listed is not None and listed.status == 200
    (branch,) = [row["branch"] for row in json.loads(listed.body)["data"]]
    chat, names = stack.body_of(LEFT), [name.hex() for name in stack.begun]
    messages = json.dumps(
        {"model": "fake-model", "max_tokens": 9, "messages": [{"role": "user", "content": LEFT}]}
    ).encode()
    responses = json.dumps({"model": "fake-model", "input": LEFT, "temperature": 1}).encode()
    ways = [
        ("GET", "/dynbranch/v1/branches", b""),
        ("GET", f"/dynbranch/v1/branches/{branch}", b""),
        ("GET", "/dynbranch/v1/stats", b""),
        ("GET", "/dynbranch/v1/tools", b""),
        ("GET", "/v1/models", b""),
        ("POST", "/dynbranch/v1/explain", chat),
        ("POST", "/dynbranch/v1/explain/v1/chat/completions", chat),
        ("POST", "/dynbranch/v1/explain/v1/messages", messages),
        ("POST", "/dynbranch/v1/explain/v1/responses", responses),
        ("POST", "/v1/messages/count_tokens", messages),
        *(("GET", f"/dynbranch/v1/entries/{name}", b"") for name in names),
    ]
    found = {}
    for key in KEYS:
        for method, path, body in ways:
            answer = await stack.ask(method, path, body, key=key)
            assert answer is not None
            # What another tenant has is no more found than what is not there.
            assert answer.status != 405 and (answer.status != 404 or path.endswith((branch, *names))), path
            found[f"{key}: {method} {path}"] = answer
    return found


async def looked_at_from_everywhere(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether there was a shadow to look for."""
    tenants = Tenants(KEYS, operators=("acme", "other"))
    async with running_stack(Awaits("nobody", 0, Fault.LOSE), once=True, tenants=tenants) as stack:
        route = await undecided(stack)
        if route is None:
            return False
        found = await asked_of_everything(stack)
        assert found["alice: POST /dynbranch/v1/explain"].status == 200
        for where, answer in found.items():
            assert FIRST.encode() not in answer.body, where
        assert stack.states("left") == ["shadow", "shadow"] and stack.runs[LEFT] == 1, "no look is a demand"
        other = await stack.post(LEFT, key="bob", workflow="w1")
        assert other is not None and (other.outcome, other.text) == ("miss", f"done: {LEFT} #2")
        assert stack.states("left") == ["shadow", "shadow"]
        stack.gates[ROUTE].set()
        await route
        own = await stack.post(LEFT, key="alice")
        assert own is not None and (own.outcome, own.text) == ("promoted", f"done: {FIRST}")
        await stack.comes_to_rest()
    assert FIRST not in caplog.text
    return True


@pytest.mark.promise("C2.shadow_unreadable", "I2")
def test_no_way_to_look_shows_a_shadow(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    async def looked_at() -> None:
        seen = [await looked_at_from_everywhere(caplog)]
        while not seen[-1] and len(seen) < ATTEMPTS:
            seen.append(await looked_at_from_everywhere(caplog))
        assert seen[-1]

    in_leaping_time(looked_at())
