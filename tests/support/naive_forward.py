"""A second opinion: the forward pass of Llama, Qwen2 and Qwen3 written down as plainly as possible.

It shares no code with the engine: it reads config.json and the safetensors itself, computes in fp32 (or fp64), keeps
no cache, and attends over the whole sequence at once with a mask. RoPE kinds: default, linear, llama3; others are
refused. For tests only, and slow by design.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

FAMILIES = ("llama", "qwen2", "qwen3")


class NaiveModel:
    """One model directory, widened to `dtype`; `logits` is all it does."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        if self.config["model_type"] not in FAMILIES:
            raise ValueError(f"unknown model type {self.config['model_type']}")
        self._weights: dict[str, Tensor] = {}
        for file in sorted(path.glob("*.safetensors")):
            self._weights.update({name: tensor.to(dtype) for name, tensor in load_file(file).items()})
        self._num_heads: int = self.config["num_attention_heads"]
        self._num_kv_heads: int = self.config.get("num_key_value_heads") or self._num_heads
        self._head_dim: int = self.config.get("head_dim") or self.config["hidden_size"] // self._num_heads
        self._frequencies = rope_frequencies(self.config, self._head_dim)

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], last: int | None = None) -> Tensor:
        """Logits [n, vocab] after each of the `last` tokens (None: all) of the sequence, computed from scratch."""
        x = self._weights["model.embed_tokens.weight"][torch.tensor(list(token_ids))]
        for index in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{index}."
            x = x + self._attention(prefix + "self_attn.", self._norm(x, prefix + "input_layernorm"))
            x = x + self._feed_forward(prefix + "mlp.", self._norm(x, prefix + "post_attention_layernorm"))
        head = self._weights.get("lm_head.weight")
        if self.config.get("tie_word_embeddings") or head is None:
            head = self._weights["model.embed_tokens.weight"]
        return self._norm(x[-last if last else 0 :], "model.norm") @ head.T

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self._weights[name + ".weight"].T
        bias = self._weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Root mean square norm over the last dimension."""
        mean_square = (x * x).mean(dim=-1, keepdim=True)
        return x / torch.sqrt(mean_square + self.config["rms_norm_eps"]) * self._weights[name + ".weight"]

    def _feed_forward(self, prefix: str, x: Tensor) -> Tensor:
        gate = self._linear(x, prefix + "gate_proj")
        return self._linear(gate * torch.sigmoid(gate) * self._linear(x, prefix + "up_proj"), prefix + "down_proj")

    def _attention(self, prefix: str, x: Tensor) -> Tensor:
        """Causal attention over all rows of x [n, hidden]; query head h reads key head h // group."""
        count, group = x.shape[0], self._num_heads // self._num_kv_heads
        q = self._linear(x, prefix + "q_proj").view(count, self._num_heads, self._head_dim)
        k = self._linear(x, prefix + "k_proj").view(count, self._num_kv_heads, self._head_dim)
        v = self._linear(x, prefix + "v_proj").view(count, self._num_kv_heads, self._head_dim)
        if prefix + "q_norm.weight" in self._weights:
            q, k = self._norm(q, prefix + "q_norm"), self._norm(k, prefix + "k_norm")
        q, k = self._rotate(q), self._rotate(k)
        hidden_from = torch.ones(count, count, dtype=torch.bool).triu(1)
        heads = []
        for head in range(self._num_heads):
            scores = q[:, head] @ k[:, head // group].T / math.sqrt(self._head_dim)
            weights = torch.softmax(scores.masked_fill(hidden_from, -math.inf), dim=-1)
            heads.append(weights @ v[:, head // group])
        return self._linear(torch.cat(heads, dim=-1), prefix + "o_proj")

    def _rotate(self, x: Tensor) -> Tensor:
        """Turn each pair (i, i + head_dim / 2) of x [n, heads, head_dim] by position times its frequency."""
        angles = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * self._frequencies
        cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rope_frequencies(config: dict[str, Any], head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions, [head_dim / 2] fp64.

    Raises:
        ValueError: a RoPE kind that this file does not know.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    plain: Tensor = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return plain
    if kind == "linear":
        return plain / float(rope["factor"])
    if kind == "llama3":
        return _llama3(plain, rope)
    raise ValueError(f"unknown rope type {kind}")


def _llama3(plain: Tensor, rope: dict[str, Any]) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    blended: Tensor = keep * plain + (1 - keep) * plain / rope["factor"]
    return blended
