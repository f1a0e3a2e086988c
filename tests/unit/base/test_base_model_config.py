"""Configuration of the three families, RoPE spellings, refusals, digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.base.model_config import ModelConfig, ModelError, load_model_config, model_digest, parse_model_config
from common.base.model_tensors import num_parameters, tensor_shapes

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


def config_of(*removed: str, **changes: Any) -> ModelConfig:
    raw = {key: value for key, value in {**LLAMA, **changes}.items() if key not in removed}
    return parse_model_config(raw, {})


def family(name: str, **changes: Any) -> ModelConfig:
    classes = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
    return config_of(model_type=name, architectures=[classes[name]], **changes)


def test_llama_defaults() -> None:
    config = config_of("num_key_value_heads")
    assert (config.num_kv_heads, config.head_dim, config.dtype) == (4, 16, "bfloat16")
    assert not (config.qkv_bias or config.o_bias or config.mlp_bias or config.qk_norm or config.tie_word_embeddings)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert (config.rope.kind, config.rope.theta) == ("default", 10000.0)
    assert config.kv_bytes_per_token(2) == 2 * 2 * 4 * 16 * 2


def test_biases_and_norms_by_family() -> None:
    llama = family("llama", attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias, llama.qk_norm) == (True, True, True, False)
    qwen2 = family("qwen2", attention_bias=True)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.mlp_bias, qwen2.qk_norm) == (True, False, False, False)
    qwen3 = family("qwen3")
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 128)
    assert family("qwen3", head_dim=32).head_dim == 32


def test_new_dtype_spelling() -> None:
    assert config_of("torch_dtype", dtype="float16").dtype == "float16"


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind_key", ["rope_type", "type"])
@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_simple_rope_scaling_spellings(key: str, kind_key: str, kind: str) -> None:
    rope = config_of(rope_theta=5e5, **{key: {kind_key: kind, "factor": 4}}).rope
    assert (rope.kind, rope.factor, rope.theta) == (kind, 4.0, 5e5)


def test_theta_inside_rope_parameters_wins() -> None:
    rope = config_of(rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 1e6}).rope
    assert (rope.kind, rope.theta) == ("default", 1e6)


def test_llama3_rope() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    rope = config_of(rope_scaling=scaling).rope
    assert (rope.kind, rope.factor, rope.low_freq_factor, rope.high_freq_factor) == ("llama3", 32.0, 1.0, 4.0)
    assert rope.original_max_position == 512
    without = {key: value for key, value in scaling.items() if key != "original_max_position_embeddings"}
    assert config_of(rope_scaling=without).rope.original_max_position == 2048


def test_yarn_rope() -> None:
    rope = config_of(rope_scaling={"type": "yarn", "original_max_position_embeddings": 512}).rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 512)
    assert (rope.beta_fast, rope.beta_slow, rope.attention_factor, rope.truncate) == (32.0, 1.0, None, True)
    full = {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16, "attention_factor": 1.1, "truncate": False}
    rope = config_of(rope_parameters=full).rope
    assert (rope.factor, rope.beta_fast, rope.attention_factor, rope.truncate) == (2.0, 16.0, 1.1, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma"}, "model type 'gemma'"),
        ({"model_type": None}, "model type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "RoPE kind 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"eos_token_id": 100}, "eos_token_id"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"torch_dtype": "int8"}, "dtype 'int8'"),
    ],
)
def test_what_cannot_run_is_refused(changes: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        config_of(**changes)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_missing_value_is_named() -> None:
    with pytest.raises(ModelError, match="vocab_size"):
        config_of("vocab_size")


def write(path: Path, config: Any = LLAMA) -> None:
    (path / "config.json").write_text(json.dumps(config))


def test_generation_config_wins_for_eos(tmp_path: Path) -> None:
    write(tmp_path)
    assert load_model_config(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert load_model_config(tmp_path).eos_token_ids == (3, 4)


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, "\ud800"])
def test_damaged_file_is_one_clear_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        load_model_config(tmp_path)
    assert "\n" not in caught.value.message


def test_missing_directory_and_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_model_config(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load_model_config(tmp_path)


def test_digest_sees_every_content_and_nothing_else(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("config.json", "tokenizer.json", "model.safetensors")}
    for name, file in files.items():
        file.write_text(name)
    first = model_digest(tmp_path)
    (tmp_path / "README.md").write_text("no part of the model")
    assert model_digest(tmp_path) == first
    for name, file in files.items():
        file.write_text("changed")
        assert model_digest(tmp_path) != first, name
        file.write_text(name)
    files["model.safetensors"].rename(tmp_path / "other.safetensors")
    assert model_digest(tmp_path) != first
    (tmp_path / "other.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        model_digest(tmp_path)


def test_tensor_table_of_each_family() -> None:
    llama = tensor_shapes(family("llama", tie_word_embeddings=True))
    assert len(llama) == 2 + 2 * 9
    assert llama["model.layers.1.self_attn.k_proj.weight"] == (32, 64)
    assert llama["model.layers.0.mlp.down_proj.weight"] == (64, 96)
    qwen2 = tensor_shapes(family("qwen2"))
    assert qwen2["lm_head.weight"] == (100, 64)
    assert set(qwen2) - set(tensor_shapes(family("llama"))) == {
        f"model.layers.{layer}.self_attn.{name}_proj.bias" for layer in range(2) for name in "qkv"
    }
    qwen3 = tensor_shapes(family("qwen3", head_dim=32))
    assert qwen3["model.layers.0.self_attn.q_norm.weight"] == (32,)
    assert qwen3["model.layers.0.self_attn.o_proj.weight"] == (64, 128)


def test_parameter_count() -> None:
    config = family("llama", tie_word_embeddings=True)
    layer = 2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96
    assert num_parameters(config) == 100 * 64 + 64 + 2 * layer
