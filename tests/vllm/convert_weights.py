"""``python convert_weights.py MODEL.gguf FOLDER``: a llama model in a GGUF file as a folder that vLLM serves.

Quantised tensors are expanded to 16 bits, so that vLLM computes with the very weights of the embedded engine.
Runs in the environment of ``make test-vllm``: needs gguf, numpy, safetensors and tokenizers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

Metadata = dict[str, Any]

_CONTROL = 3
"""The token type of turn marks and the like, in ``tokenizer.ggml.token_type``."""

_OUTSIDE_LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class NotConvertible(Exception):
    """The file holds a model or tokenizer of another kind."""


def convert(source: Path, folder: Path) -> None:
    """Raises NotConvertible."""
    reader = GGUFReader(source)
    metadata: Metadata = {name: field.contents() for name, field in reader.fields.items()}
    kinds = metadata["general.architecture"], metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
    if kinds != ("llama", "gpt2", "smollm"):
        raise NotConvertible(f"a llama model with the tokenizer of SmolLM is wanted, this is {kinds}")
    weights = dict(_weights(reader, metadata))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(metadata).save(str(folder / "tokenizer.json"))
    special = {kind: metadata[f"tokenizer.ggml.{kind}_token_id"] for kind in ("bos", "eos", "padding")}
    ids = {
        "bos_token_id": special["bos"],
        "eos_token_id": special["eos"],
        "pad_token_id": special["padding"],
    }
    tied = "lm_head.weight" not in weights
    _write(folder / "config.json", {**_shape(metadata), **ids, "tie_word_embeddings": tied})
    _write(folder / "generation_config.json", ids)
    _write(folder / "tokenizer_config.json", _tokenizer_settings(metadata))


def _weights(reader: GGUFReader, metadata: Metadata) -> Iterator[tuple[str, numpy.ndarray]]:
    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        *layer, part, kind = tensor.name.split(".")
        if part in heads:
            values = _halves_apart(values, heads[part])
        name = f"model.layers.{layer[1]}.{_IN_LAYER[part]}" if layer else _OUTSIDE_LAYERS[part]
        yield f"{name}.{kind}", numpy.ascontiguousarray(values, dtype=numpy.float16)


def _halves_apart(rows: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Rotary positions turn pairs of rows. GGUF keeps the two of a pair side by side; the other format keeps
    all first ones of a head before all second ones."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(rows.shape)


def _shape(metadata: Metadata) -> dict[str, Any]:
    def of(name: str) -> Any:
        return metadata[f"llama.{name}"]

    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "float16",
        "hidden_act": "silu",
        "attention_bias": False,
        "vocab_size": of("vocab_size"),
        "max_position_embeddings": of("context_length"),
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": of("rope.dimension_count"),
        "rope_theta": of("rope.freq_base"),
        # Kept in 32 bits, where 1e-5 is not 1e-5.
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),
    }


def _tokenizer(metadata: Metadata) -> Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    digit_by_digit = pre_tokenizers.Digits(individual_digits=True)
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digit_by_digit, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    marks = [
        token
        for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
        if kind == _CONTROL
    ]
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    return tokenizer


def _tokenizer_settings(metadata: Metadata) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": metadata["tokenizer.chat_template"],
        **{
            f"{ours}_token": tokens[metadata[f"tokenizer.ggml.{theirs}_token_id"]]
            for ours, theirs in names.items()
        },
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
