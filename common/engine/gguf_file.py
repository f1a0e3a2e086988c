"""A GGUF file seen as a Hugging Face-style model: config.json, vocabulary, and tensors under their Hugging Face names.

The only file that imports the optional package `gguf`, and only when a GGUF is opened. It reads; `gguf_import` writes.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from common.base.errors import Unsupported
from common.base.model_config import ModelError
from common.tokenizer.gguf_vocab import GgufVocab

Json = dict[str, Any]
_T = TypeVar("_T")

_CAUSAL_LM = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_DAMAGE = (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)


class GgufFile:
    """One opened GGUF file (memory-mapped).

    Raises:
        ModelError: the file is missing, damaged or of an unsupported kind; from every method.
        Unsupported: the package `gguf` is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._gguf = importlib.import_module("gguf")
        except ImportError as error:
            raise Unsupported("importing a GGUF needs the PyPI package gguf: pip install 'pando[import]'") from error
        if not path.is_file():
            raise ModelError(f"GGUF file {path} does not exist")
        try:
            self._reader = self._gguf.GGUFReader(path)
        except _DAMAGE as error:
            raise ModelError(f"{path} is no readable GGUF file: {error}") from error
        self._path = path
        self._architecture = self._value("general.architecture", str)
        if self._architecture not in _CAUSAL_LM:
            known = ", ".join(_CAUSAL_LM)
            raise ModelError(f"GGUF architecture {self._architecture!r} is not supported (known: {known})")
        self._shapes = {tensor.name: tuple(int(n) for n in tensor.shape[::-1]) for tensor in self._reader.tensors}

    def config_json(self) -> Json:
        """Return the content of config.json; weights are to be stored as bfloat16."""
        heads = self._arch_value("attention.head_count", int)
        hidden = self._arch_value("embedding_length", int)
        head_dim = self._arch_value("attention.key_length", int, hidden // max(heads, 1))
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._arch_value(key, int, head_dim) != head_dim:
                raise ModelError(f"GGUF {key} differs from the head size {head_dim}: not supported")
        config: Json = {
            "architectures": [_CAUSAL_LM[self._architecture]],
            "model_type": self._architecture,
            "vocab_size": self._shapes.get("token_embd.weight", (0,))[0],
            "hidden_size": hidden,
            "intermediate_size": self._arch_value("feed_forward_length", int),
            "num_hidden_layers": self._arch_value("block_count", int),
            "num_attention_heads": heads,
            "num_key_value_heads": self._arch_value("attention.head_count_kv", int, heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self._arch_value("context_length", int),
            "rms_norm_eps": _shortest(self._arch_value("attention.layer_norm_rms_epsilon", float)),
            "rope_theta": _shortest(self._arch_value("rope.freq_base", float, 10000.0)),
            "rope_scaling": self._rope_scaling(),
            "tie_word_embeddings": "output.weight" not in self._shapes,
            "torch_dtype": "bfloat16",
            **self.generation_config_json(),
        }
        if self._architecture != "qwen2":
            config["attention_bias"] = "blk.0.attn_q.bias" in self._shapes
        return config

    def generation_config_json(self) -> Json:
        """Return the content of generation_config.json: the ids that begin, end and pad."""
        special = self._special_ids()
        ends = [special[name] for name in ("eos", "eot") if name in special]
        ids: Json = {f"{name}_token_id": special[name] for name in ("bos", "pad") if name in special}
        if ends:
            ids["eos_token_id"] = ends[0] if len(set(ends)) == 1 else ends
        return ids

    def vocab(self) -> GgufVocab:
        """Return the tokenizer part."""
        if self._value("tokenizer.ggml.add_eos_token", bool, False):
            raise ModelError("GGUF tokenizers that append an end token to every text are not supported")
        return GgufVocab(
            model=self._value("tokenizer.ggml.model", str),
            pre=self._value("tokenizer.ggml.pre", str, ""),
            tokens=self._value("tokenizer.ggml.tokens", list),
            kinds=self._value("tokenizer.ggml.token_type", list),
            merges=self._value("tokenizer.ggml.merges", list),
            add_bos=self._value("tokenizer.ggml.add_bos_token", bool) if self._has("add_bos_token") else None,
            special={name: index for name, index in self._special_ids().items() if name != "eot"},
            chat_template=self._value("tokenizer.chat_template", str, "") or None,
            context_tokens=self._arch_value("context_length", int),
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (Hugging Face name, bfloat16 tensor [out, in] or [n]) for every tensor, dequantised one at a time."""
        for tensor in self._reader.tensors:
            name = _hf_name(tensor.name)
            try:
                values = self._gguf.dequantize(tensor.data, tensor.tensor_type)
            except (NotImplementedError, ValueError) as error:
                raise ModelError(f"cannot dequantise tensor {tensor.name}: {error}") from error
            weight = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(self._shapes[tensor.name])
            if self._architecture == "llama" and (".attn_q." in tensor.name or ".attn_k." in tensor.name):
                weight = _unpermuted(weight, self._num_heads_of(tensor.name))
            yield name, weight.to(torch.bfloat16).contiguous()

    def _num_heads_of(self, name: str) -> int:
        heads = self._arch_value("attention.head_count", int)
        return heads if ".attn_q." in name else self._arch_value("attention.head_count_kv", int, heads)

    def _rope_scaling(self) -> Json | None:
        if "rope_freqs.weight" in self._shapes:
            raise ModelError("GGUF RoPE frequency tables (Llama 3.1 scaling) are not supported: use the safetensors")
        kind = self._arch_value("rope.scaling.type", str, "none")
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise ModelError(f"GGUF RoPE scaling {kind!r} is not supported (known: none, linear, yarn)")
        scaling: Json = {"rope_type": kind, "factor": _shortest(self._arch_value("rope.scaling.factor", float))}
        if kind == "yarn":
            original = self._arch_value("rope.scaling.original_context_length", int)
            scaling["original_max_position_embeddings"] = original
        return scaling

    def _special_ids(self) -> dict[str, int]:
        keys = {"bos": "bos", "eos": "eos", "eot": "eot", "unk": "unknown", "pad": "padding"}
        return {
            name: self._value(f"tokenizer.ggml.{key}_token_id", int)
            for name, key in keys.items()
            if self._has(f"{key}_token_id")
        }

    def _has(self, tokenizer_key: str) -> bool:
        return f"tokenizer.ggml.{tokenizer_key}" in self._reader.fields

    def _arch_value(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        return self._value(f"{self._architecture}.{key}", kind, default)

    def _value(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        field = self._reader.fields.get(key)
        if field is None:
            if default is None:
                raise ModelError(f"{self._path} has no metadata {key}")
            return default
        try:
            value = field.contents()
        except _DAMAGE as error:
            raise ModelError(f"metadata {key} of {self._path} is damaged: {error}") from error
        if type(value) is not kind:
            raise ModelError(f"metadata {key} of {self._path} is a {type(value).__name__}, not a {kind.__name__}")
        return value


def _hf_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ModelError(f"GGUF tensor {name!r} is not supported")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _unpermuted(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo the row order of llama GGUFs.

    They store each head's rows as pairs (i, i + head_dim/2) because their RoPE rotates neighbours; Hugging Face's
    rotates the two halves of a head.
    """
    rows = weight.shape[0]
    if rows % (2 * num_heads):
        raise ModelError(f"{rows} rows of a q or k tensor do not split into {num_heads} heads")
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _shortest(value: float) -> float:
    """The shortest decimal that rounds to the same float32, which is how GGUF stores it."""
    return float(str(np.float32(value)))
