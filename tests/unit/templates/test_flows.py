"""The flows' bodies are those of the ordinary client, and a flow goes on whatever a model says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from dynbranch.demo.flows import Ask, Flow, Model, menus, react, routing_chain, sub_agents, topics_of
from dynbranch.demo.records import dialogues, passages, questions, routing_requests
from dynbranch.demo.rehearsal import performances
from openai import OpenAI

RESULT = '{"results":[{"id":"p1","title":"t","score":1.0}]}'
PASSAGE = '{"id":"p1","title":"t","text":"x","version":1}'


class Listener(BaseHTTPRequestHandler):
    """Keeps what was sent and answers nothing of use."""

    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(400)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def heard() -> Iterator[tuple[OpenAI, list[bytes]]]:
    bodies: list[bytes] = []
    server = HTTPServer(("127.0.0.1", 0), type("Hearing", (Listener,), {"bodies": bodies}))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with OpenAI(base_url=url, api_key="not-needed", max_retries=0) as client:
        yield client, bodies
    server.shutdown()
    server.server_close()
    thread.join()


def asks(flow: Flow, model_says: str) -> list[Ask]:
    made = []
    try:
        ask = next(flow)
        while True:
            made.append(ask)
            answers = {"search": RESULT, "get": PASSAGE}
            ask = flow.send(answers.get(ask.target, model_says))
    except StopIteration:
        return made


def flows(model: Model) -> list[Flow]:
    by_id = {passage.id: passage for passage in passages()}
    question = questions()[0]
    return [
        routing_chain(routing_requests()[0], model),
        react(question, model),
        sub_agents(question, topics_of(question, by_id), model),
        menus(dialogues()[0], model),
    ]


@pytest.mark.parametrize("number", range(4))
def test_the_openai_client_sends_the_same_bytes(number: int, heard: tuple[OpenAI, list[bytes]]) -> None:
    client, bodies = heard
    says = json.dumps({"entity": 'a "name"\né', "topic": "x", "more": True})
    chats = [ask for ask in asks(flows(Model("a-model"))[number], says) if ask.kind == "chat"]
    assert chats
    for ask in chats:
        arguments = json.loads(ask.body)
        with pytest.raises(Exception, match="400"):
            client.chat.completions.create(**arguments)
        assert bodies[-1] == ask.body


@pytest.mark.parametrize(
    "says", ["", "no json", "[]", '{"handler":7,"entity":{},"topic":null}', '{"handler":"z']
)
def test_a_model_that_does_not_decide_ends_the_flow(says: str) -> None:
    for flow in flows(Model("m")):
        stages = [ask.stage for ask in asks(flow, says)]
        assert stages[-1] in ("aggregate", "answer", "synthesise", "tell")


def test_a_search_without_results_ends_the_look_up() -> None:
    flow = react(questions()[0], Model("m"))
    next(flow)
    search = flow.send('{"thought":"t","entity":"nobody","finish":false}')
    assert search.body == b'{"query": "nobody", "k": 1}'
    assert flow.send('{"results":[]}').stage == "answer"


def test_what_a_branch_leads_to_does_not_depend_on_its_decision_s_words() -> None:
    """Otherwise nothing could be made ready before the decision."""
    model = Model("m")
    by_words = []
    for words in ("one", "other"):
        says = json.dumps({"thought": words, "reason": words, "plan": words, "entity": "E", "topic": "T"})
        made = [ask for flow in flows(model)[1:3] for ask in asks(flow, says)]
        by_words.append([a.body for a in made if a.stage in ("search", "get", "note", "report")])
    assert by_words[0] == by_words[1] != []


def test_a_note_and_a_report_declare_what_they_read() -> None:
    says = json.dumps({"entity": "E", "topic": "T"})
    for flow in flows(Model("m"))[1:3]:
        read = [ask.reads for ask in asks(flow, says) if ask.stage in ("note", "report")]
        assert set(read) == {("passages/p1",)}


def test_only_a_pick_is_waited_for() -> None:
    waited = {ask.stage for flow in flows(Model("m")) for ask in asks(flow, "{}") if ask.waits}
    assert waited == {"act"}


def test_topics_hold_the_passages_that_the_question_takes() -> None:
    by_id = {passage.id: passage for passage in passages()}
    for question in questions():
        topics = topics_of(question, by_id)
        assert len(set(topics)) == len(topics) == 4
        assert {by_id[id].title for id in question.gold} <= set(topics)


def test_every_record_is_performed() -> None:
    records = [(p.workflow_type, p.record) for p in performances("m")]
    assert len(set(records)) == len(records)
    assert len(records) == len(routing_requests()) + 2 * len(questions()) + len(dialogues())
