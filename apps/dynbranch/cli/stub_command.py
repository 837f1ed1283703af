"""``dynbranch stub-engine``: its options, and what they make of the settings."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from dynbranch.cli.failures import CliFailure, for_people

if TYPE_CHECKING:
    from dynbranch.enginemodel.parameters import Parameters
    from dynbranch.stub_engine.faults import Fault
    from dynbranch.stub_engine.script import Rule


class FlavourName(Enum):
    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    LLAMA_SERVER = "llama-server"


@for_people
def stub_engine(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    flavour: Annotated[
        FlavourName, typer.Option(help="Whose paths, gauges and priorities.")
    ] = FlavourName.VLLM,
    model: Annotated[str, typer.Option(help="Name of the model that is served.")] = "stub-model",
    alias: Annotated[list[str] | None, typer.Option(help="Another name of it. Repeatable.")] = None,
    preset: Annotated[
        str, typer.Option(help="Latency model: fixed, h200-qwen3-32b or rtx4090-qwen3-8b.")
    ] = "fixed",
    ttft_ms: Annotated[
        float | None, typer.Option(min=0, help="Time to the first token at every load ('fixed' only).")
    ] = None,
    token_ms: Annotated[
        float | None, typer.Option(min=0, help="Time between tokens at every load ('fixed' only).")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Generations at once (max_num_seqs).")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens in the KV pool.")] = None,
    block_tokens: Annotated[
        int | None, typer.Option(min=0, help="Block of the prefix cache; 0: no prefix cache.")
    ] = None,
    prefill_tokens_per_s: Annotated[
        float | None, typer.Option(min=1, help="Prefill speed (not with 'fixed').")
    ] = None,
    prefill_chunk_tokens: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens in one step (not with 'fixed').")
    ] = None,
    max_model_len: Annotated[int, typer.Option(min=1, help="Prompt and output of one request.")] = 131_072,
    output_tokens: Annotated[
        int, typer.Option(min=0, help="How long the model speaks; 0: as long as max_tokens allows.")
    ] = 0,
    default_output_tokens: Annotated[
        int, typer.Option(min=1, help="How long without max_tokens and --output-tokens.")
    ] = 64,
    script: Annotated[
        Path | None, typer.Option(help="JSON lines: which requests get which answers.", dir_okay=False)
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(help="JSON lines: faults in force from the start.", dir_okay=False)
    ] = None,
    slow_start_s: Annotated[float, typer.Option(min=0, help="How long it says that it is loading.")] = 0.0,
    native: Annotated[bool, typer.Option(help="Speaks Messages and Responses, too.")] = False,
) -> None:
    """An OpenAI-compatible engine without a model: scripted answers, stated latencies, faults on command."""
    from dynbranch.stub_engine.main import run
    from dynbranch.stub_engine.settings import Flavour, StubSettings

    changes = {
        "time_to_first_token_ms": ttft_ms,
        "inter_token_ms": token_ms,
        "slots": slots,
        "kv_pool_tokens": kv_tokens,
        "block_tokens": block_tokens,
        "prefill_tokens_per_s": prefill_tokens_per_s,
        "prefill_chunk_tokens": prefill_chunk_tokens,
    }
    run(
        StubSettings(
            flavour=Flavour(flavour.value),
            latency=_latency(preset, {key: value for key, value in changes.items() if value is not None}),
            host=host,
            port=port,
            model=model,
            aliases=tuple(alias or ()),
            max_model_len=max_model_len,
            output_tokens=output_tokens,
            default_output_tokens=default_output_tokens,
            rules=_rules(script),
            faults=_faults(faults),
            slow_start_s=slow_start_s,
            native=native,
        )
    )


def _latency(name: str, changes: dict[str, Any]) -> Parameters:
    from dynbranch.enginemodel.parameters import UnknownPreset, preset

    try:
        return replace(preset(name), **changes)
    except UnknownPreset as error:
        raise CliFailure(str(error)) from None
    except ValueError as error:
        raise CliFailure(f"the latency model: {error}") from None
    except TypeError:
        raise CliFailure(
            f"the preset {name!r} has not all of: {', '.join(changes)}",
            "--ttft-ms and --token-ms go with --preset fixed, the prefill with the others.",
        ) from None


def _rules(file: Path | None) -> tuple[Rule, ...]:
    from dynbranch.stub_engine.matching import ScriptError
    from dynbranch.stub_engine.script import rules_of

    try:
        return rules_of(file) if file else ()
    except (ScriptError, OSError) as error:
        raise CliFailure(f"the script: {error}", "docs/stub-engine.md has the format.") from None


def _faults(file: Path | None) -> tuple[Fault, ...]:
    import json

    from dynbranch.stub_engine.faults import fault_from

    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file else []
        return tuple(fault_from(json.loads(line)) for line in lines if line.strip())
    except (ValueError, TypeError, RecursionError, OSError) as error:
        raise CliFailure(f"the faults: {error}", "docs/stub-engine.md has the format.") from None
