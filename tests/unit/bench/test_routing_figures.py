"""The arrivals and the figures of ``bench routing``, without engines."""

from __future__ import annotations

import json
from typing import Any

from dynbranch.bench.routing import Seen, figures, summary
from dynbranch.bench.routing_arrivals import Workload, arrivals

SMALL = Workload(requests=80, per_s=10.0, families=5)


def test_a_seed_makes_one_run_and_two_seeds_share_nothing() -> None:
    one, again, other = (arrivals(SMALL, model="m", seed=seed) for seed in (1, 1, 2))
    assert one == again
    texts = [{m["content"] for a in run for m in json.loads(a.body)["messages"]} for run in (one, other)]
    assert not texts[0] & texts[1]


def test_dialects_are_the_same_arrivals_in_other_letters() -> None:
    one, other = (arrivals(SMALL, model="m", seed=1, dialect=dialect) for dialect in (0, 3))
    for a, b in zip(one, other, strict=True):
        first, second = (json.loads(each.body)["messages"] for each in (a, b))
        assert a.at_s == b.at_s and [len(m["content"]) for m in first] == [len(m["content"]) for m in second]
        assert not {m["content"] for m in first} & {m["content"] for m in second}


def test_conversations_grow_and_families_are_shared() -> None:
    prompts = [json.loads(one.body)["messages"] for one in arrivals(SMALL, model="m", seed=3)]
    firsts = {prompt[0]["content"] for prompt in prompts}
    assert len(firsts) <= SMALL.families
    turns = [len(prompt) for prompt in prompts]
    assert max(turns) > 2 and all(prompt[-1]["role"] == "user" for prompt in prompts)
    times = [one.at_s for one in arrivals(SMALL, model="m", seed=3)]
    assert times == sorted(times)


def test_what_is_counted() -> None:
    seen = [
        Seen(0, 200, 99.0, 100, 100),
        Seen(1, 200, 10.0, 100, 50),
        Seen(2, 0, 5000.0),
        Seen(3, 200, 20.0, 300, 150),
    ]
    found = summary(seen, 1)
    assert (found["requests"], found["unanswered"], found["hit_share"]) == (3, 1, 0.5)
    assert (found["p50_ms"], found["p99_ms"]) == (20.0, 20.0)


def test_figures_are_ratios_of_runs() -> None:
    def way(hit_share: float) -> dict[str, Any]:
        return {"hit_share": hit_share, "p50_ms": 1.0, "p99_ms": 2.0, "unanswered": 0, "requests": 9}

    run = {"dynbranch": way(0.6), "least in flight": way(0.3), "vllm-router": way(0.5)}
    harm = {"healthy": way(0.5), "dead": {**way(0.5), "p99_ms": 3.0}, "mute": {**way(0.5), "unanswered": 2}}
    found = figures([run, run], [harm, harm])
    assert found["hit_share_over_vllm_router"].value == 1.2
    assert found["hit_share_over_least_in_flight"].value == 2.0
    assert found["elsewhere_p99_dead_over_healthy"].value == 1.5
    assert (found["unanswered_mute"].value, found["unanswered_mute"].n) == (4, 18)
    assert "hit_share_over_round_robin" not in found
