"""The texts that engines show beside their answers: gauges in each flavour's own names, and descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynbranch.enginemodel.messages import Gauges
from dynbranch.enginemodel.parameters import Parameters
from dynbranch.stub_engine.settings import Flavour, StubSettings

STUB_VERSION = "0.1.0+stub"


@dataclass(frozen=True, slots=True)
class Readings:
    """``running`` includes generations that a fault keeps."""

    gauges: Gauges
    running: int
    waiting: int
    started_unix_s: float
    model: str


def metrics(flavour: Flavour, readings: Readings) -> bytes:
    match flavour:
        case Flavour.SGLANG:
            rows = _sglang_rows(readings)
        case Flavour.LLAMA_SERVER:
            rows = _llama_rows(readings)
        case _:
            rows = _vllm_rows(readings)
    label = "" if flavour is Flavour.LLAMA_SERVER else f'{{model_name="{readings.model}"}}'
    lines = []
    for name, kind, value in rows:
        lines.append(f"# TYPE {name} {kind}\n{name}{label} {value}\n")
    lines.append(
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {readings.started_unix_s}\n"
    )
    return "".join(lines).encode()


def _vllm_rows(readings: Readings) -> list[tuple[str, str, float]]:
    counters = readings.gauges.counters
    return [
        ("vllm:num_requests_running", "gauge", readings.running),
        ("vllm:num_requests_waiting", "gauge", readings.waiting),
        ("vllm:kv_cache_usage_perc", "gauge", readings.gauges.kv_used_share),
        ("vllm:prefix_cache_queries_total", "counter", counters.prefix_query_tokens),
        ("vllm:prefix_cache_hits_total", "counter", counters.prefix_hit_tokens),
        ("vllm:num_preemptions_total", "counter", counters.preemptions),
        ("vllm:prompt_tokens_total", "counter", counters.prompt_tokens),
        ("vllm:generation_tokens_total", "counter", counters.output_tokens),
        ("vllm:request_success_total", "counter", counters.finished),
    ]


def _sglang_rows(readings: Readings) -> list[tuple[str, str, float]]:
    counters = readings.gauges.counters
    hit_share = counters.prefix_hit_tokens / max(1, counters.prefix_query_tokens)
    return [
        ("sglang:num_running_reqs", "gauge", readings.running),
        ("sglang:num_queue_reqs", "gauge", readings.waiting),
        ("sglang:token_usage", "gauge", readings.gauges.kv_used_share),
        ("sglang:cache_hit_rate", "gauge", hit_share),
        ("sglang:prompt_tokens_total", "counter", counters.prompt_tokens),
        ("sglang:generation_tokens_total", "counter", counters.output_tokens),
        ("sglang:num_requests_total", "counter", counters.finished),
    ]


def _llama_rows(readings: Readings) -> list[tuple[str, str, float]]:
    counters = readings.gauges.counters
    return [
        ("llamacpp:requests_processing", "gauge", readings.running),
        ("llamacpp:requests_deferred", "gauge", readings.waiting),
        ("llamacpp:prompt_tokens_total", "counter", counters.prompt_tokens),
        ("llamacpp:tokens_predicted_total", "counter", counters.output_tokens),
    ]


def models(settings: StubSettings, created: int) -> dict[str, Any]:
    cards: list[dict[str, Any]] = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": settings.flavour.value,
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.max_model_len,
        }
        for name in (settings.model, *settings.aliases)
    ]
    if settings.flavour is Flavour.LLAMA_SERVER:
        cards = [{**cards[0], "aliases": list(settings.aliases)}]
    return {"object": "list", "data": cards}


def llama_properties(settings: StubSettings, template: str, starts: int) -> dict[str, Any]:
    return {
        "total_slots": settings.latency.slots,
        "chat_template": template,
        "default_generation_settings": {
            "params": {"temperature": 0.8, "top_k": 40},
            "n_ctx": settings.max_model_len,
        },
        "model_ftype": "F16",
        "build_info": STUB_VERSION,
        "media_marker": f"start {starts}",
    }


def sglang_server_info(settings: StubSettings, latency: Parameters) -> dict[str, Any]:
    return {
        "model_path": settings.model,
        "served_model_name": settings.model,
        "tokenizer_path": settings.model,
        "dtype": "auto",
        "quantization": None,
        "tp_size": 1,
        "context_length": settings.max_model_len,
        "max_running_requests": latency.slots,
        "max_total_num_tokens": latency.kv_pool_tokens,
        "enable_priority_scheduling": True,
        "enable_deterministic_inference": False,
        "enable_metrics": True,
        "version": STUB_VERSION,
        "status": "ready",
    }


def sglang_model_info(settings: StubSettings) -> dict[str, Any]:
    return {
        "model_path": settings.model,
        "tokenizer_path": settings.model,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "stub",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "stub",
        "architectures": ["StubForCausalLM"],
    }
