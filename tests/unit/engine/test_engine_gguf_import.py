"""GGUF import: exact round trip of a file written by the `gguf` package, refusals, atomicity."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.base.errors import Unsupported
from common.base.model_config import ModelError, load_model_config, parse_model_config
from common.base.model_tensors import tensor_shapes
from common.engine.gguf_import import MARKER_FILE, import_gguf
from common.engine.weights import load_weights, weight_files
from common.tokenizer.chat_template import ChatTemplate
from common.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_vocab import tiny_vocab

gguf = pytest.importorskip("gguf")

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS = 4, 2, 8, 32, 64, 2
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}

Tensors = dict[str, torch.Tensor]


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.{kind}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as a llama GGUF stores them: of each head 0, d/2, 1, d/2 + 1, ..."""
    half = weight.shape[0] // heads // 2
    order = [head * 2 * half + part * half + row for head in range(heads) for row in range(half) for part in range(2)]
    return weight[order]


class Writer:
    """Writes a tiny GGUF; tests change `values` and `tensors` before `write`."""

    def __init__(self, architecture: str = "llama", tied: bool = True) -> None:
        self.architecture = architecture
        vocab = tiny_vocab()
        self.values: dict[str, Any] = {
            f"{architecture}.block_count": LAYERS,
            f"{architecture}.context_length": 128,
            f"{architecture}.embedding_length": HIDDEN,
            f"{architecture}.feed_forward_length": INNER,
            f"{architecture}.attention.head_count": HEADS,
            f"{architecture}.attention.head_count_kv": KV_HEADS,
            f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{architecture}.rope.freq_base": 1e6,
            f"{architecture}.rope.dimension_count": HEAD_DIM,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": vocab.tokens,
            "tokenizer.ggml.token_type": vocab.kinds,
            "tokenizer.ggml.merges": vocab.merges,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.chat_template": vocab.chat_template,
        }
        self.expected = self._random(len(vocab.tokens), tied)
        self.tensors = {gguf_name(name): self._stored(name, value) for name, value in self.expected.items()}
        self.types = {name: gguf.GGMLQuantizationType.F32 for name in self.tensors}

    def _random(self, vocab_size: int, tied: bool) -> Tensors:
        raw = {
            "model_type": self.architecture,
            "vocab_size": vocab_size,
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": 128,
            "tie_word_embeddings": tied,
        }
        shapes = tensor_shapes(parse_model_config(raw, {}))
        generator = torch.Generator().manual_seed(2)
        return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}

    def _stored(self, name: str, value: torch.Tensor) -> np.ndarray:
        array = value.float().numpy()
        if self.architecture == "llama" and ".q_proj." in name:
            return interleaved(array, HEADS)
        if self.architecture == "llama" and ".k_proj." in name:
            return interleaved(array, KV_HEADS)
        return array

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        add: dict[type, Callable[[str, Any], None]] = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            bool: writer.add_bool,
            list: writer.add_array,
        }
        for key, value in self.values.items():
            add[type(value)](key, value)
        for name, array in self.tensors.items():
            kind = self.types[name]
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def assert_same(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, right[name]), name


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path: Path, architecture: str, tied: bool) -> None:
    writer = Writer(architecture, tied)
    if architecture == "qwen3":
        writer.values["qwen3.attention.key_length"] = HEAD_DIM
    out = tmp_path / "deep" / "model"
    assert import_gguf(writer.write(tmp_path / "m.gguf"), out)
    config = load_model_config(out)
    assert (config.architecture, config.num_layers, config.num_heads) == (architecture, LAYERS, HEADS)
    assert (config.num_kv_heads, config.head_dim, config.max_position) == (KV_HEADS, HEAD_DIM, 128)
    assert (config.rms_norm_eps, config.rope.theta, config.dtype) == (1e-5, 1e6, "bfloat16")
    assert (config.tie_word_embeddings, config.bos_token_id, config.eos_token_ids) == (tied, 1, (0,))
    assert_same(load_weights(out, config), writer.expected)
    assert Tokenizer.load(out).encode("a  5", False) == [99, 258, 55]
    template = ChatTemplate.load(out)
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]).endswith("<|start|>assistant\n")


def test_the_comparison_sees_rows_left_in_llama_order(tmp_path: Path) -> None:
    """Negative control."""
    writer = Writer()
    name = "model.layers.1.self_attn.k_proj.weight"
    writer.tensors[gguf_name(name)] = writer.expected[name].float().numpy()
    out = tmp_path / "model"
    import_gguf(writer.write(tmp_path / "m.gguf"), out)
    with pytest.raises(AssertionError, match="k_proj"):
        assert_same(load_weights(out, load_model_config(out)), writer.expected)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_quantised_tensors(tmp_path: Path, kind: str) -> None:
    writer = Writer()
    name = "model.layers.0.mlp.up_proj.weight"
    quantised = gguf.GGMLQuantizationType[kind]
    writer.types[gguf_name(name)] = quantised
    out = tmp_path / "model"
    import_gguf(writer.write(tmp_path / "m.gguf"), out)
    array = writer.tensors[gguf_name(name)]
    exact = torch.from_numpy(np.array(gguf.dequantize(gguf.quantize(array, quantised), quantised)))
    assert torch.equal(load_weights(out, load_model_config(out))[name], exact.bfloat16())


def test_import_is_idempotent_and_deterministic(tmp_path: Path) -> None:
    source = Writer().write(tmp_path / "m.gguf")
    first, second = tmp_path / "first", tmp_path / "second"
    assert import_gguf(source, first) and import_gguf(source, second)
    assert contents(first) == contents(second)
    assert not import_gguf(source, first)
    assert {file.name for file in tmp_path.iterdir()} == {"m.gguf", "first", "second"}


def test_what_is_in_the_way_is_never_overwritten(tmp_path: Path) -> None:
    source = Writer().write(tmp_path / "m.gguf")
    out = tmp_path / "model"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(ModelError, match="was not imported from this file"):
        import_gguf(source, out)
    (out / "precious").unlink()
    assert import_gguf(source, out)
    (out / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match="incomplete or changed"):
        import_gguf(source, out)


def test_a_failed_import_leaves_nothing(tmp_path: Path) -> None:
    writer = Writer()
    del writer.tensors["blk.1.ffn_up.weight"]
    source = writer.write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        import_gguf(source, tmp_path / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


def test_large_models_are_sharded(tmp_path: Path) -> None:
    writer = Writer(tied=False)
    out = tmp_path / "model"
    import_gguf(writer.write(tmp_path / "m.gguf"), out, max_shard_bytes=20_000)
    assert len(weight_files(out)) > 2
    assert_same(load_weights(out, load_model_config(out)), writer.expected)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("llama.rope.dimension_count", 4, "rope.dimension_count"),
        ("llama.attention.head_count", "many", "is a str, not a int"),
        ("llama.rope.scaling.type", "longrope", "RoPE scaling 'longrope'"),
        ("llama.block_count", None, "no metadata llama.block_count"),
        ("llama.feed_forward_length", 32, "mlp."),
        ("tokenizer.ggml.pre", "tekken", "pre-tokenizer 'tekken'"),
        ("tokenizer.ggml.add_eos_token", True, "append an end token"),
        ("tokenizer.ggml.token_type", None, "no metadata tokenizer.ggml.token_type"),
    ],
)
def test_metadata_that_does_not_fit(tmp_path: Path, key: str, value: Any, words: str) -> None:
    writer = Writer()
    writer.values[key] = value
    writer.values = {name: value for name, value in writer.values.items() if value is not None}
    with pytest.raises(ModelError) as caught:
        import_gguf(writer.write(tmp_path / "m.gguf"), tmp_path / "model")
    assert words in caught.value.message


def test_scaled_rope(tmp_path: Path) -> None:
    writer = Writer()
    writer.values |= {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    import_gguf(writer.write(tmp_path / "m.gguf"), tmp_path / "model")
    rope = load_model_config(tmp_path / "model").rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 32)


def test_foreign_tensors_and_architectures(tmp_path: Path) -> None:
    for name in ("rope_freqs.weight", "blk.0.ffn_gate_exps.weight"):
        writer = Writer()
        writer.tensors[name] = np.ones(4, np.float32)
        writer.types[name] = gguf.GGMLQuantizationType.F32
        with pytest.raises(ModelError):
            import_gguf(writer.write(tmp_path / "m.gguf"), tmp_path / "model")
    writer = Writer()
    writer.architecture = "gemma"
    with pytest.raises(ModelError, match="architecture 'gemma'"):
        import_gguf(writer.write(tmp_path / "m.gguf"), tmp_path / "model")


def test_two_end_tokens(tmp_path: Path) -> None:
    writer = Writer()
    writer.values["tokenizer.ggml.eot_token_id"] = 1
    import_gguf(writer.write(tmp_path / "m.gguf"), tmp_path / "model")
    assert load_model_config(tmp_path / "model").eos_token_ids == (0, 1)
    marker = json.loads((tmp_path / "model" / MARKER_FILE).read_text())
    assert set(marker) == {"files", "format", "source_sha256"}


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    content = Writer().write(tmp_path / "m.gguf").read_bytes()
    damaged = tmp_path / "d.gguf"
    with pytest.raises(ModelError, match=r"d\.gguf"):
        import_gguf(damaged, tmp_path / "model")
    cuts = [content[:size] for size in (0, 3, 20, 100, 5000, len(content) // 2, len(content) - 9)]
    wild = [content[:position] + b"\xff" * 16 + content[position + 16 :] for position in (4, 8, 30, 60, 300)]
    for bad in [*cuts, *wild]:
        damaged.write_bytes(bad)
        with pytest.raises(ModelError) as caught:
            import_gguf(damaged, tmp_path / "model")
        assert "\n" not in caught.value.message
        assert not (tmp_path / "model").exists()


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Writer().write(tmp_path / "m.gguf")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(Unsupported, match="pip install"):
        import_gguf(source, tmp_path / "model")
