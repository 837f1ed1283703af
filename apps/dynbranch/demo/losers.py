"""A workflow whose decision never takes what was foretold: every fill is lost while it runs, and aborted."""

from __future__ import annotations

import json
from pathlib import Path

from dynbranch.demo.flows import Ask, Flow

LOSERS = "losers"
_OFFERED = ("tea", "coffee")
_CHOICE = "nothing"
_LONGEST = 400
"""Tokens of what is lost: more than a decision lasts."""

TEMPLATE = """\
workflow_type: losers
version: 1
inputs:
  model: {request: decide, path: $.model}
  offered: {request: decide, path: '$.messages[0].content', regex: '^- (.*)$', every: true}
  number: {request: decide, path: '$.messages[0].content', regex: '^Guest (.*) is'}
stages:
  decide:
    kind: chat
    request: '{"model":{{ model | json_compact }}}'
  tell:
    kind: chat
    speculable: yes
    request: |
      {"model":{{ model | json_compact }},"messages":[
        {"role":"user","content":"Tell guest {{ number | in_json }} all about {{ selection | in_json }}."}
      ],"max_tokens":{{ 8 if selection == 'nothing' else LONGEST }},"temperature":0}
decision_points:
  drink:
    stage: decide
    window: decode
    branch: exclusive
    resolved_by: {output: decide, path: $.drink}
    opens: {arrival: decide}
    candidates: {menu: {input: offered}, predictors: [offer]}
    then: [tell]
"""


def write_losers(folder: Path) -> None:
    text = TEMPLATE.replace("LONGEST", str(_LONGEST))
    (folder / f"{LOSERS}.yaml").write_text(text, encoding="utf-8")


def losing(model: str, number: int) -> Flow:
    """One decision, and nothing after it."""
    offered = "\n".join(f"- {one}" for one in _OFFERED)
    properties = {
        "reason": {"type": "string", "minLength": 24, "maxLength": 48},
        "drink": {"type": "string", "enum": [_CHOICE]},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    form = {"name": "decide", "schema": {**schema, "additionalProperties": False}, "strict": True}
    body = {
        "model": model,
        "messages": [
            {"role": "user", "content": f"Guest {number} is asked for a drink:\n{offered}\nAnswer with JSON."}
        ],
        "max_tokens": 96,
        "response_format": {"type": "json_schema", "json_schema": form},
        "temperature": 0,
    }
    return (yield Ask("decide", "chat", model, json.dumps(body).encode()))
