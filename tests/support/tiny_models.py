"""Tiny random models of every family, for tests that need a forward pass but no real weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from common.base.model_config import ModelConfig, RopeConfig
from common.base.model_tensors import tensor_shapes

TINY_LLAMA = ModelConfig(
    architecture="llama",
    vocab_size=211,
    hidden_size=96,
    intermediate_size=176,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    max_position=512,
    tie_word_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    bos_token_id=1,
    eos_token_ids=(2,),
    dtype="float32",
    rope=RopeConfig(),
)
TINY_QWEN2 = replace(TINY_LLAMA, architecture="qwen2", qkv_bias=True, tie_word_embeddings=False)
TINY_QWEN3 = replace(TINY_LLAMA, architecture="qwen3", qk_norm=True, head_dim=32, tie_word_embeddings=False)


def random_weights(config: ModelConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    """Weights for `config` by Hugging Face name, scaled so that activations and logits stay of order one."""
    generator = torch.Generator().manual_seed(seed)

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            return 1 + 0.1 * values
        return values / shape[-1] ** 0.5 if len(shape) == 2 else 0.1 * values

    return {name: tensor(name, shape).to(dtype) for name, shape in tensor_shapes(config).items()}
