"""An answer says the same whether it was executed, joined or recorded."""

from __future__ import annotations

import asyncio
import json

import pytest
from dynbranch.engine_agent.fake import Script
from integration.gateway.world import World, eventually

ALIASED = {"model": "fake-alias"}


@pytest.mark.promise("C1.serve_a_hit")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_is_named_as_this_request_names_it(world: World, stream: bool) -> None:
    asked = ({}, ALIASED, {}, {"temperature": 1}, {**ALIASED, "temperature": 1})
    answers = [await world.chat(stream=stream, **fields) for fields in asked]
    assert [answer.outcome for answer in answers] == ["miss", "hit", "hit", "miss", "miss"]
    for fields, answer in zip(asked, answers, strict=True):
        chunks = answer.events()[:-1] if stream else [answer.json]
        assert {chunk["model"] for chunk in chunks} == {fields.get("model", "fake-model")}


@pytest.mark.promise("C1.serve_a_hit")
async def test_the_ids_of_the_tokens_are_joined(world: World) -> None:
    head = {"id": "e", "object": "chat.completion.chunk", "created": 1, "model": "fake-model"}
    said = [("a", [1, 2]), ("b", [3]), (None, [4])]
    items = [
        {**head, "prompt_token_ids": [9], "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        *(
            {
                **head,
                "choices": [
                    {
                        "index": 0,
                        "delta": {} if text is None else {"content": text},
                        "token_ids": ids,
                        "prompt_token_ids": [9],
                        "finish_reason": "stop" if text is None else None,
                    }
                ],
            }
            for text, ids in said
        ),
    ]
    script = Script(items=tuple(json.dumps(item).encode() for item in items))
    world.engine.writer = lambda order: script
    answers = [await world.chat() for _ in range(2)]
    assert [answer.outcome for answer in answers] == ["miss", "hit"]
    for answer in answers:
        assert answer.json["prompt_token_ids"] == [9] and answer.text == "ab"
        assert answer.json["choices"][0]["token_ids"] == [1, 2, 3, 4]
        assert answer.json["choices"][0]["prompt_token_ids"] == [9]


async def test_who_joins_sees_the_model_under_its_own_name(world: World) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    leader = asyncio.create_task(world.chat())
    await eventually(lambda: world.engine.running)
    joined = asyncio.create_task(world.chat(stream=True, **ALIASED))
    await eventually(lambda: len(world.csl.demands) == 2)
    gate.set()
    assert (await leader).json["model"] == "fake-model"
    answer = await joined
    assert answer.outcome == "joined"
    assert {chunk["model"] for chunk in answer.events()[:-1]} == {"fake-alias"}


async def test_a_name_that_is_none_of_the_models_stays_as_the_engine_said_it(world: World) -> None:
    item = {
        "model": "org/build-7",
        "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}],
    }
    world.engine.writer = lambda order: Script(items=(json.dumps(item).encode(),))
    answers = [await world.chat(), await world.chat(**ALIASED)]
    assert [answer.json["model"] for answer in answers] == ["org/build-7", "org/build-7"]
