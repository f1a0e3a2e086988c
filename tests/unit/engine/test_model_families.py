"""Each family, RoPE kind and head tying against transformers on small random configurations, fp32 logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from common.base.model_config import ModelConfig, RopeConfig, parse_model_config
from common.engine.kernels.library import load_library
from tests.support.engine_steps import forward_logits, make_runner
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, TINY_QWEN3, random_weights

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "mscale": 0.8,
        "mscale_all_dim": 0.5,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
}
BACKENDS = ["torch_ref", "cpu"]
TOKENS = [(7 * i * i + 3 * i + 1) % 211 for i in range(150)]


def reference(config: ModelConfig, rope: dict[str, Any], weights: dict[str, torch.Tensor]) -> tuple[Any, ModelConfig]:
    """A transformers model with `weights`, and the configuration this project reads from its config.json."""
    config_class, model_class = CLASSES[config.architecture]
    kwargs: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_parameters": rope,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "pad_token_id": None,
    }
    if config.architecture == "llama":
        kwargs |= {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    hf_config = config_class(**kwargs)
    model = model_class(hf_config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    raw = hf_config.to_dict() | {"model_type": config.architecture, "architectures": [model_class.__name__]}
    return model, parse_model_config(raw, {})


def our_logits(config: ModelConfig, weights: dict[str, torch.Tensor], backend: str) -> torch.Tensor:
    """Logits of every position of TOKENS, through the runner's own forward."""
    runner = make_runner(config, weights, backend, num_blocks=16)
    return forward_logits(runner, TOKENS, range(16))


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize(
    "config",
    [TINY_LLAMA, replace(TINY_LLAMA, tie_word_embeddings=False, qkv_bias=True, o_bias=True, mlp_bias=True), TINY_QWEN2,
     replace(TINY_QWEN2, tie_word_embeddings=True), TINY_QWEN3, replace(TINY_QWEN3, tie_word_embeddings=True)],
    ids=["llama-tied", "llama-untied-biased", "qwen2-untied", "qwen2-tied", "qwen3-untied", "qwen3-tied"],
)  # fmt: skip
def test_logits_equal_transformers(config: ModelConfig, rope: str) -> None:
    assert load_library() is not None, "the C++ kernels are not built: python -m common.engine.build"
    weights = random_weights(config)
    model, parsed = reference(config, ROPES[rope], weights)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    for backend in BACKENDS:
        torch.testing.assert_close(our_logits(parsed, weights, backend), expected, atol=1e-4, rtol=0, msg=backend)


def test_the_comparison_sees_a_wrong_rope() -> None:
    weights = random_weights(TINY_LLAMA)
    model, parsed = reference(TINY_LLAMA, ROPES["default"], weights)
    wrong = replace(parsed, rope=RopeConfig(theta=20000.0))
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert (our_logits(wrong, weights, "torch_ref") - expected).abs().max() > 1e-2
