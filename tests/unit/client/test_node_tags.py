"""What a node of a graph is called. The metadata are those that LangGraph was seen to give."""

from __future__ import annotations

import pytest
from dynbranch.tagging.langgraph import node_tags
from dynbranch.tagging.tags import Tags

NODE = {"langgraph_node": "write", "langgraph_step": 2, "langgraph_path": ("__pregel_pull", "write")}
ID = "0d6c5c2e-5b5e-4f5e-9a52-3b4a9f2f7c11"


@pytest.mark.parametrize(
    ("more", "agent", "stage"),
    [
        ({}, "write", "write-2"),
        ({"langgraph_checkpoint_ns": f"write:{ID}"}, "write", "write-2"),
        ({"langgraph_checkpoint_ns": f"team:{ID}|write:{ID}"}, "team/write", "team_write-2"),
        ({"langgraph_checkpoint_ns": f"team:{ID}|3|write:{ID}"}, "team/write", "team_write-2"),
        ({"langgraph_path": ("__pregel_push", 3, False)}, "write#3", "write-2"),
        ({"langgraph_node": "schön & gut"}, "schön & gut", "sch_n_gut-2"),
    ],
)
def test_a_node_and_its_step_are_the_coordinate(more: dict[str, object], agent: str, stage: str) -> None:
    assert node_tags({**NODE, **more}, steps=True) == Tags(agent=agent, stage=stage)


def test_without_steps_a_node_is_one_stage_however_often_it_runs() -> None:
    assert node_tags(NODE, steps=False).stage == "write"


def test_a_thread_is_the_workflow() -> None:
    assert node_tags({**NODE, "thread_id": 7}, steps=True).workflow == "7"
    assert node_tags({"thread_id": "t"}, steps=True) == Tags(workflow="t")
    assert node_tags({}, steps=True) == Tags()
