"""The naive forward agrees with transformers and with the engine, and the comparison can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from common.engine.loader import EngineConfig, load_runner
from tests.support.engine_steps import forward_logits
from tests.support.naive_forward import NaiveModel, rope_frequencies

TOKENS = [(7 * i * i + 3 * i + 1) % 211 for i in range(90)]
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 50000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"mlp_bias": True, "attention_bias": True}),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"head_dim": 32}),
}


def saved_model(path: Path, family: str, rope: str, tied: bool) -> Any:
    """A small random transformers model, also written to `path`."""
    config_class, model_class, extra = FAMILIES[family]
    config = config_class(
        vocab_size=211,
        hidden_size=96,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_parameters=ROPES[rope],
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.1,
        **extra,
    )
    torch.manual_seed(3)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return model


@torch.inference_mode()
def reference_logits(model: Any) -> Tensor:
    logits: Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_naive_equals_transformers_and_engine(tmp_path: Path, family: str, rope: str, tied: bool) -> None:
    model = saved_model(tmp_path, family, rope, tied)
    naive = NaiveModel(tmp_path)
    expected = reference_logits(model)
    torch.testing.assert_close(naive.logits(TOKENS), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(naive.logits(TOKENS, last=2), expected[-2:], atol=1e-4, rtol=0)
    runner = load_runner(EngineConfig(tmp_path, "fp32", num_threads=1))
    runner.attach_pool(memoryview(bytearray(8 * runner.layout.block_bytes)), 8)
    torch.testing.assert_close(forward_logits(runner, TOKENS, range(8)), naive.logits(TOKENS), atol=1e-4, rtol=0)


def test_the_comparison_sees_another_rope(tmp_path: Path) -> None:
    model = saved_model(tmp_path, "llama", "default", tied=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 10000.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (NaiveModel(tmp_path).logits(TOKENS) - reference_logits(model)).abs().max() > 1e-2


def test_unknown_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ValueError, match="mamba"):
        NaiveModel(tmp_path)
    with pytest.raises(ValueError, match="yarn"):
        rope_frequencies({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, 16)
