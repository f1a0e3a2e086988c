"""Weight files: single, sharded, tied; and one clear line for everything that is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.base.model_config import ModelConfig, ModelError, parse_model_config
from common.base.model_tensors import tensor_shapes
from common.engine.weights import INDEX_FILE, SINGLE_FILE, load_weights, weight_files

Tensors = dict[str, torch.Tensor]


def tiny(tied: bool = True, model_type: str = "llama") -> ModelConfig:
    raw = {
        "model_type": model_type,
        "vocab_size": 20,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }
    return parse_model_config(raw, {})


def random_weights(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in tensor_shapes(config).items()}


def save_sharded(path: Path, tensors: Tensors, shards: int) -> None:
    names = sorted(tensors)
    weight_map = {name: f"part-{number % shards}.safetensors" for number, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, path / file)
    (path / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def assert_same(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_single_file_round_trip(tmp_path: Path, tied: bool, model_type: str, dtype: torch.dtype) -> None:
    config = tiny(tied, model_type)
    tensors = random_weights(config, dtype)
    save_file(tensors, tmp_path / SINGLE_FILE)
    assert_same(load_weights(tmp_path, config), tensors)


def test_sharded_equals_single(tmp_path: Path) -> None:
    config = tiny(False)
    tensors = random_weights(config)
    save_sharded(tmp_path, tensors, 3)
    assert len(weight_files(tmp_path)) == 3
    assert_same(load_weights(tmp_path, config), tensors)


def test_base_model_names_tied_copy_and_rope_buffers_are_normalised(tmp_path: Path) -> None:
    config = tiny(True)
    tensors = random_weights(config)
    stored = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    stored["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    stored["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    save_file(stored, tmp_path / SINGLE_FILE)
    assert_same(load_weights(tmp_path, config), tensors)


def refused(path: Path, config: ModelConfig) -> str:
    with pytest.raises(ModelError) as caught:
        load_weights(path, config)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    config = tiny()
    good = random_weights(config)
    name = "model.layers.1.mlp.up_proj.weight"

    save_file({key: value for key, value in good.items() if key != name}, tmp_path / SINGLE_FILE)
    assert f"{name} of shape [12, 8] is missing" in refused(tmp_path, config)

    save_file({**good, "model.layers.2.mlp.up_proj.weight": good[name].clone()}, tmp_path / SINGLE_FILE)
    assert "unexpected tensor model.layers.2.mlp.up_proj.weight" in refused(tmp_path, config)

    save_file({**good, name: torch.zeros(8, 12, dtype=torch.bfloat16)}, tmp_path / SINGLE_FILE)
    assert f"{name} has shape [8, 12] where config.json implies [12, 8]" in refused(tmp_path, config)

    save_file({**good, name: torch.zeros(12, 8, dtype=torch.int8)}, tmp_path / SINGLE_FILE)
    assert f"{name} has dtype I8" in refused(tmp_path, config)

    save_file({**good, "norm.weight": good["model.norm.weight"].clone()}, tmp_path / SINGLE_FILE)
    assert "model.norm.weight is stored twice" in refused(tmp_path, config)


def test_damaged_files(tmp_path: Path) -> None:
    config = tiny()
    assert "neither" in refused(tmp_path, config)
    file = tmp_path / SINGLE_FILE
    save_file(random_weights(config), file)
    content = file.read_bytes()
    for damaged in (b"", content[:50], content[:-1], b"\xff" * 64):
        file.write_bytes(damaged)
        assert str(file) in refused(tmp_path, config)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{", "not valid JSON"),
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "no plain file name"),
        ('{"weight_map": {"a": 3}}', "no plain file name"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors"),
    ],
)
def test_damaged_index(tmp_path: Path, index: str, words: str) -> None:
    (tmp_path / INDEX_FILE).write_text(index)
    assert words in refused(tmp_path, tiny())
