"""One decoder for Llama, Qwen2 and Qwen3: flat token rows in, hidden rows and logits out.

Rows of all sequences of a step lie in one `[num_tokens, hidden]` fp32 matrix; only attention knows which row belongs
to which sequence. QKV and gate/up are fused linears. Logits are computed for wanted rows only.
The model knows neither plans nor sampling nor the KV pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from common.base.model_config import ModelConfig
from common.engine.attention.base import AttentionBackend, HeadShape
from common.engine.linear import Linear
from common.engine.ops import HeadNorms, Ops, Rotary
from common.engine.rope import rope_table

MakeLinear = Callable[[Tensor, Tensor | None], Linear]
"""Builds a linear from weight [out, in] and bias [out] or None."""


@dataclass(slots=True, frozen=True)
class Layer:
    """Weights of one decoder layer; norms are fp32 [hidden]."""

    input_norm: Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class DecoderModel:
    """The decoder with its weights. Stateless between calls; used by the engine thread only."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], make_linear: MakeLinear, ops: Ops) -> None:
        """Take over `weights` (HF names). The embedding is kept as it is, linears are packed by `make_linear`."""
        self.config = config
        self.heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
        cos, sin = rope_table(config)
        self._rotary = Rotary(self.heads, cos, sin, config.rms_norm_eps)
        self._ops = ops
        self._embedding = weights["model.embed_tokens.weight"]
        self._final_norm = weights["model.norm.weight"].float()
        self._layers = [_layer(config, weights, make_linear, index) for index in range(config.num_layers)]
        head = self._embedding if config.tie_word_embeddings else weights["lm_head.weight"]
        self._head = make_linear(head, None)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Run all layers; `attention` must have planned this step.

        Args:
            token_ids: [num_tokens] int64.
            positions: [num_tokens] int32.
            attention: the planned backend; its pool receives the KV of the rows.

        Returns:
            Hidden rows [num_tokens, hidden] fp32, final norm not applied.
        """
        hidden = self._embedding[token_ids].float()
        for index, layer in enumerate(self._layers):
            self._attend(index, layer, hidden, positions, attention)
            self._feed_forward(layer, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits [rows, vocab] of hidden rows from `forward`."""
        return self._head(self._ops.rms_norm(hidden, self._final_norm, self.config.rms_norm_eps))

    def _attend(self, index: int, layer: Layer, hidden: Tensor, positions: Tensor, attention: AttentionBackend) -> None:
        """Add the attention of layer `index` to `hidden` in place."""
        qkv = layer.qkv(self._ops.rms_norm(hidden, layer.input_norm, self.config.rms_norm_eps))
        self._ops.rotate(qkv, positions, self._rotary, layer.head_norms)
        rows = qkv.view(qkv.shape[0], -1, self.heads.head_dim)
        keys, values = self.heads.num_heads, self.heads.num_heads + self.heads.num_kv_heads
        q, k, v = rows[:, :keys], rows[:, keys:values], rows[:, values:]
        hidden.add_(layer.output(attention.run(index, q, k, v)))

    def _feed_forward(self, layer: Layer, hidden: Tensor) -> None:
        """Add the gated feed-forward to `hidden` in place."""
        rows = self._ops.rms_norm(hidden, layer.post_norm, self.config.rms_norm_eps)
        hidden.add_(layer.down(self._ops.silu_mul(layer.gate_up(rows))))


def _layer(config: ModelConfig, weights: Mapping[str, Tensor], make_linear: MakeLinear, index: int) -> Layer:
    prefix = f"model.layers.{index}."

    def linear(bias: bool, *names: str) -> Linear:
        weight = torch.cat([weights[f"{prefix}{name}.weight"] for name in names])
        return make_linear(weight, torch.cat([weights[f"{prefix}{name}.bias"] for name in names]) if bias else None)

    def norm(name: str) -> Tensor:
        return weights[f"{prefix}{name}.weight"].float()

    return Layer(
        input_norm=norm("input_layernorm"),
        qkv=linear(config.qkv_bias, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        head_norms=HeadNorms(norm("self_attn.q_norm"), norm("self_attn.k_norm")) if config.qk_norm else None,
        output=linear(config.o_bias, "self_attn.o_proj"),
        post_norm=norm("post_attention_layernorm"),
        gate_up=linear(config.mlp_bias, "mlp.gate_proj", "mlp.up_proj"),
        down=linear(config.mlp_bias, "mlp.down_proj"),
    )
