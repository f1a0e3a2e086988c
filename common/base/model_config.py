"""What a model directory says about its model: shapes, RoPE, special token ids, content digest.

A model directory is a Hugging Face-style folder (config.json, optional generation_config.json, tokenizer.json,
safetensors files). This module reads the JSON files only, so that router, gateway and CLI can know a model without
torch. A `ModelConfig` that was returned is complete and consistent: every family's defaults are filled in, and
everything this build cannot run right (another architecture, activation, RoPE kind, quantised weights, sliding window)
was refused with one `ModelError`. It does not know tensors (see `common.base.model_tensors`) nor compute dtypes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base.errors import PandoError

Json = Mapping[str, Any]

_CAUSAL_LM = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_DTYPES = ("float32", "float16", "bfloat16")
_ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
_QWEN3_HEAD_DIM = 128
_DEFAULT_THETA = 10000.0


class ModelError(PandoError):
    """The model directory is missing, damaged, or of a kind this build cannot run."""

    grpc_code, http_status, default_reason = "INVALID_ARGUMENT", 400, "bad_model"


@dataclass(slots=True, frozen=True)
class RopeConfig:
    """Rotary position embedding of a model, scaling included.

    Attributes:
        theta: base of the geometric row of frequencies.
        kind: default, linear, dynamic, llama3 or yarn. `dynamic` equals `default` up to `max_position` tokens.
        factor: context extension factor; 1 for default.
        original_max_position: context the model was pretrained with (llama3, yarn).
        low_freq_factor, high_freq_factor: llama3's band limits.
        beta_fast, beta_slow, mscale, mscale_all_dim, truncate: yarn's parameters.
        attention_factor: yarn's scale of cos and sin; None means derive it from factor and the mscales.
    """

    theta: float = _DEFAULT_THETA
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(slots=True, frozen=True)
class ModelConfig:
    """Shape and semantics of one decoder-only model. Immutable.

    Attributes:
        architecture: llama, qwen2 or qwen3.
        max_position: longest sequence in tokens.
        qkv_bias, o_bias, mlp_bias: which linears have a bias.
        qk_norm: RMS norm per head on q and k before RoPE (qwen3).
        bos_token_id: None when the model has none.
        eos_token_ids: any of these ends an answer; generation_config.json wins over config.json.
        dtype: the dtype that config.json names for the weights: float32, float16 or bfloat16.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str
    rope: RopeConfig

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of K and V of one token over all layers, for KV elements of `element_bytes`."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes


def load_model_config(path: Path) -> ModelConfig:
    """Read the configuration of the model directory `path`.

    Raises:
        ModelError: missing or damaged file, or a model this build cannot run.
    """
    if not path.is_dir():
        raise ModelError(f"model directory {path} does not exist")
    raw = read_json(path / "config.json")
    generation_path = path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    return parse_model_config(raw, generation)


def parse_model_config(raw: Json, generation: Json) -> ModelConfig:
    """Build a `ModelConfig` from the parsed config.json and generation_config.json (may be empty).

    Raises:
        ModelError: a value is missing or wrong, or names something this build cannot run.
    """
    architecture = _architecture(raw)
    _refuse_unsupported(raw)
    num_heads = _count(raw, "num_attention_heads")
    hidden_size = _count(raw, "hidden_size")
    num_kv_heads = _count(raw, "num_key_value_heads", num_heads)
    head_dim = _count(raw, "head_dim", _QWEN3_HEAD_DIM if architecture == "qwen3" else hidden_size // num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}")
    if head_dim % 2:
        raise ModelError(f"head_dim {head_dim} is odd: RoPE needs an even one")
    max_position = _count(raw, "max_position_embeddings")
    vocab_size = _count(raw, "vocab_size")
    attention_bias = _flag(raw, "attention_bias")
    bos = _token_ids(raw, "bos_token_id", vocab_size)
    eos = _token_ids(generation, "eos_token_id", vocab_size) or _token_ids(raw, "eos_token_id", vocab_size)
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        max_position=max_position,
        tie_word_embeddings=_flag(raw, "tie_word_embeddings"),
        qkv_bias=architecture == "qwen2" or attention_bias,
        o_bias=architecture != "qwen2" and attention_bias,
        mlp_bias=architecture == "llama" and _flag(raw, "mlp_bias"),
        qk_norm=architecture == "qwen3",
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        dtype=_dtype(raw),
        rope=_rope(raw, max_position),
    )


def model_digest(path: Path) -> bytes:
    """SHA-256 over the names and contents of config.json, tokenizer.json and all safetensors files of `path`.

    Reads every weight byte (about 1 to 2 GB/s): call it once per process, off the event loop.

    Raises:
        ModelError: a file is missing or unreadable.
    """
    digest = hashlib.sha256(b"pando-model-1")
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ModelError(f"{path} has no .safetensors file")
    for file in [path / "config.json", path / "tokenizer.json", *weights]:
        try:
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").digest()
        except OSError as error:
            raise ModelError(f"cannot read {file}: {error.strerror}") from error
        name = file.name.encode()
        digest.update(len(name).to_bytes(4, "little") + name + content)
    return digest.digest()


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in file `path`.

    Raises:
        ModelError: the file is missing, unreadable, or holds something else.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def _architecture(raw: Json) -> str:
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in _CAUSAL_LM:
        raise ModelError(f"model type {model_type!r} is not supported (known: {', '.join(_CAUSAL_LM)})")
    classes = raw.get("architectures") or [_CAUSAL_LM[model_type]]
    if classes != [_CAUSAL_LM[model_type]]:
        raise ModelError(f"model class {classes!r} is not supported (known: {_CAUSAL_LM[model_type]})")
    return model_type


def _refuse_unsupported(raw: Json) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"activation {activation!r} is not supported (known: silu)")
    if raw.get("quantization_config"):
        raise ModelError("quantized weights (quantization_config) are not supported")
    layer_types = raw.get("layer_types") or []
    if _flag(raw, "use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ModelError("sliding-window attention is not supported")


def _rope(raw: Json, max_position: int) -> RopeConfig:
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise ModelError("rope_parameters (rope_scaling) is not a JSON object")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_KINDS:
        raise ModelError(f"RoPE kind {kind!r} is not supported (known: {', '.join(_ROPE_KINDS)})")
    theta = _number(scaling, "rope_theta", _number(raw, "rope_theta", _DEFAULT_THETA))
    for source in (raw, scaling):
        if _number(source, "partial_rotary_factor", 1.0) != 1.0:
            raise ModelError("partial rotary embedding (partial_rotary_factor) is not supported")
    if theta <= 1:
        raise ModelError(f"rope_theta must be above 1, not {theta}")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind in ("linear", "dynamic"):
        return RopeConfig(theta=theta, kind=kind, factor=_factor(scaling))
    original = _count(raw, "original_max_position_embeddings", 0) or _count(
        scaling, "original_max_position_embeddings", max_position
    )
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=_factor(scaling),
            original_max_position=original,
            low_freq_factor=_number(scaling, "low_freq_factor"),
            high_freq_factor=_number(scaling, "high_freq_factor"),
        )
    has_attention_factor = scaling.get("attention_factor") is not None
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=_factor(scaling, max_position / original),
        original_max_position=original,
        beta_fast=_number(scaling, "beta_fast", 32.0) or 32.0,
        beta_slow=_number(scaling, "beta_slow", 1.0) or 1.0,
        mscale=_number(scaling, "mscale", 0.0),
        mscale_all_dim=_number(scaling, "mscale_all_dim", 0.0),
        attention_factor=_number(scaling, "attention_factor") if has_attention_factor else None,
        truncate=_flag(scaling, "truncate", True),
    )


def _factor(scaling: Json, default: float | None = None) -> float:
    factor = _number(scaling, "factor", default)
    if factor < 1:
        raise ModelError(f"RoPE scaling factor must be at least 1, not {factor}")
    return factor


def _dtype(raw: Json) -> str:
    dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if dtype not in _DTYPES:
        raise ModelError(f"dtype {dtype!r} is not supported (known: {', '.join(_DTYPES)})")
    return str(dtype)


def _count(raw: Json, key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(f"{key} must be a positive integer, not {value!r}")
    return value


def _number(raw: Json, key: str, default: float | None = None) -> float:
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ModelError(f"{key} must be a number >= 0, not {value!r}")
    return float(value)


def _flag(raw: Json, key: str, default: bool = False) -> bool:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelError(f"{key} must be true or false, not {value!r}")
    return value


def _token_ids(raw: Json, key: str, vocab_size: int) -> tuple[int, ...]:
    value = raw.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise ModelError(f"{key} must be token ids below {vocab_size}, not {value!r}")
    return tuple(ids)
