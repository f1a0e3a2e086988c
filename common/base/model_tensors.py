"""Which weight tensors a model has, by Hugging Face name, and their shapes. Pure: made from the configuration alone."""

from __future__ import annotations

from math import prod

from common.base.model_config import ModelConfig

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return name -> shape of every tensor the model needs; linears are [out, in]. A tied head has no tensor."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes.update({prefix + name: shape for name, shape in _layer_shapes(config).items()})
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def num_parameters(config: ModelConfig) -> int:
    """Return the number of weights, a tied head counted once."""
    return sum(prod(shape) for shape in tensor_shapes(config).values())


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_out, kv_out = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (q_out, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_out, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_out, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q_out, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes
