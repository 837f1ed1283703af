from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.domain.ids import UnixMs
from dynbranch.engine_agent.engines.fingerprint import (
    clock_reason,
    cpu_features,
    default_facts,
    file_digest,
    metric,
    metric_labels,
    rendering_digest,
)

NOW = UnixMs(1_790_000_000_000)  # 2026-09-21


@pytest.mark.promise("C1.clock_templates_are_not_reused")
@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{{ strftime_now('%d %b %Y') }}", []),
        ("Today is {{ date_string }}", []),
        ("{{ messages }}", ["Current date: 2026-09-21"]),
        ("{{ messages }}", ["x", "Today Date: 21 Sep 2026\n"]),
        ("{{ messages }}", ["September 22, 2026"]),
    ],
)
def test_prompts_that_tell_the_time(template: str, rendered: list[str]) -> None:
    assert clock_reason(template, rendered, NOW)


def test_prompts_that_do_not() -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert clock_reason(template, ["hello", "26 Jul 2024"], NOW) == ""


def test_rendering_digest_keeps_prompts_apart() -> None:
    assert rendering_digest(["ab", "c"]) != rendering_digest(["a", "bc"])
    assert rendering_digest(["ab"]) == rendering_digest(["ab"])


def test_default_facts_are_json_and_leave_out_the_random_seed() -> None:
    params = {"temperature": 0.8, "top_k": 40, "seed": 4294967295, "samplers": ["a", "b"], "stream": False}
    assert default_facts(params) == {
        "default.temperature": "0.8",
        "default.top_k": "40",
        "default.samplers": '["a","b"]',
    }


def test_cpu_features_are_those_that_select_kernels() -> None:
    cpuinfo = (
        "processor\t: 0\nflags\t\t: fpu avx2 avx512f hypervisor fma f16c\n\nprocessor\t: 1\nflags\t: other"
    )
    assert cpu_features(cpuinfo) == "avx2 avx512f f16c fma"
    assert cpu_features("") == "unknown"


def test_file_digest(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    assert file_digest(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_gauges_are_read_over_their_labels() -> None:
    text = '# HELP a:b x\na:b{m="1"} 2\na:b{m="2"} 3.0\na:b_total 9\nc 0.5\nd{x="q\\"",y="z"} 1\ne broken\n'
    assert metric(text, "a:b") == 5.0
    assert metric(text, "c") == 0.5
    assert metric(text, "nothing") is None
    assert metric(text, "e") is None
    assert metric_labels(text, "d") == {"x": 'q\\"', "y": "z"}
    assert metric_labels(text, "c") == {}
