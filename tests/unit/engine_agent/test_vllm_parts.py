from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dynbranch.engine_agent.engines.model_folder import ModelFolder, find_model
from dynbranch.engine_agent.engines.sampling_defaults import NEUTRAL, as_facts, reported, resolved, sent
from dynbranch.engine_agent.engines.vllm_process import MODULE, Command, address, argument, commands


def test_a_model_without_a_word_on_sampling_has_neutral_defaults() -> None:
    assert resolved() == resolved({}) == resolved({"eos_token_id": 2, "do_sample": True}) == NEUTRAL


def test_a_models_own_defaults_come_before_neutral_ones_and_an_operators_last() -> None:
    model = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 512, "min_p": None, "top_p": True}
    defaults = resolved(model, {"top_k": 1})
    assert defaults == {**NEUTRAL, "temperature": "0.6", "top_k": "1", "max_tokens": "512"}
    assert as_facts(defaults)["default.max_tokens"] == "512" and "max_tokens" not in sent(defaults)


def test_a_servers_own_report_is_believed_when_it_is_whole() -> None:
    params = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.1}
    report = {"token_ids": [1], "sampling_params": {**params, "max_tokens": 2015}}
    assert reported(report) == {name: json.dumps(value) for name, value in params.items()}
    for other in (None, [], {"sampling_params": None}, {"sampling_params": {"temperature": 1.0}}):
        assert reported(other) is None


def folder(path: Path, **files: object) -> ModelFolder:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text)
    return ModelFolder(path)


def test_a_folder_tells_its_precision_and_template(tmp_path: Path) -> None:
    config = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "awq"}}
    model = folder(tmp_path, config__json=config, tokenizer_config__json={"chat_template": "{{ x }}"})
    assert model.facts() == {"weights.dtype": "bfloat16", "quantisation": "awq"}
    assert model.chat_template() == "{{ x }}"
    assert folder(tmp_path, chat_template__jinja="{{ y }}").chat_template() == "{{ y }}"
    assert ModelFolder(tmp_path / "none").facts() == {"weights.dtype": "unknown", "quantisation": "none"}
    assert ModelFolder(tmp_path / "none").chat_template() is None


@pytest.mark.promise("I1")
def test_whatever_changes_the_output_changes_the_digest(tmp_path: Path) -> None:
    digests = {folder(tmp_path, model__safetensors="a", config__json={}).digest()}
    digests.add(folder(tmp_path, model__safetensors="b").digest())
    digests.add(folder(tmp_path, chat_template__jinja="t").digest())
    digests.add(folder(tmp_path, generation_config__json={"temperature": 0.1}).digest())
    assert len(digests) == 4
    assert folder(tmp_path, README__md="words").digest() in digests


def test_a_hubs_name_is_found_where_its_client_keeps_it(tmp_path: Path) -> None:
    cached = tmp_path / "hub" / "models--org--m"
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc\n")
    environ = {"HF_HOME": str(tmp_path)}
    assert find_model("org/m", "", environ) == ModelFolder(cached / "snapshots" / "abc")
    assert find_model("org/m", "abc", {"HF_HUB_CACHE": str(tmp_path / "hub")}) is not None
    assert find_model("org/m", "other", environ) is None and find_model("org/n", "", environ) is None
    assert find_model(str(tmp_path), "", {}) == ModelFolder(tmp_path)
    assert all(find_model(name, "", environ) is None for name in ("", ".", "tests", str(tmp_path / "none")))


def test_the_last_of_an_argument_counts() -> None:
    words = ["--port", "1", "--host=a", "--port=2", "--flag", "--revision"]
    assert [argument(words, name) for name in ("--port", "--host", "--revision", "--model")] == [
        "2",
        "a",
        "",
        None,
    ]


def test_a_server_listens_where_it_is_told_to_and_else_on_this_machine_alone() -> None:
    told = address(["--host", "0.0.0.0", "--port", "8000"])
    assert told.arguments == () and told.url.endswith(":8000") and "0.0.0.0" not in told.url
    found = urlsplit(address([]).url)
    assert found.hostname == "127.0.0.1" and found.port
    assert address(["--host=::1", "--port=1"]).url == "http://[::1]:1"


def test_the_vllm_command_is_tried_before_the_module_beside_it(tmp_path: Path) -> None:
    (tmp_path / "python").touch()
    found = commands((), which=lambda name: str(tmp_path / name), importable=lambda name: False)
    assert [command.line("m", ("--seed", "1")) for command in found] == [
        (str(tmp_path / "vllm"), "serve", "m", "--seed", "1"),
        (str(tmp_path / "python"), *MODULE, "--model", "m", "--seed", "1"),
    ]
    assert commands((), which=lambda name: None, importable=lambda name: False) == ()
    told = commands(("docker", "run", "vllm", "serve"), which=lambda name: None)
    assert told == (Command(("docker", "run", "vllm", "serve"), model_is_first=True),)
    assert not commands(("python", "-m", "vllm"))[0].model_is_first
