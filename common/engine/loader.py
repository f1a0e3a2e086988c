"""Load a model directory into a `ModelRunner`: choose backend, dtypes and linears, and say what was chosen.

The only place that knows all implementations. Loading allocates the weights; the KV pool comes later, from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.base.errors import InvalidRequest, Unsupported
from common.base.model_config import ModelConfig, load_model_config
from common.engine.attention.base import AttentionBackend, HeadShape, check_kv_dtype
from common.engine.attention.cpu import CpuAttention
from common.engine.attention.torch_ref import TorchRefAttention
from common.engine.kernels.library import KernelLibrary, load_library
from common.engine.layout import KVLayout
from common.engine.linear import Linear, OneDnnLinear, PackedLinear, TorchLinear, onednn_tile
from common.engine.model import DecoderModel, MakeLinear
from common.engine.numerics import Numerics, has_native_path, numerics_id, resolve
from common.engine.ops import NativeOps, Ops, TorchOps
from common.engine.runner import ModelRunner
from common.engine.threads import apply_thread_settings
from common.engine.weights import load_weights

BACKENDS = ("auto", "cpu", "torch_ref", "flashinfer")

SLOW_NOTE = (
    "the C++ kernels are not built (python -m common.engine.build): falling back to torch_ref, "
    "which is SLOW and does not promise bitwise equal logits"
)


@dataclass(slots=True, frozen=True)
class EngineConfig:
    """What the engine needs to know to load.

    Attributes:
        model_path: model directory.
        dtype: auto (the checkpoint's), bf16, fp16 or fp32.
        kv_cache_dtype: auto (follows dtype), bf16, fp16, fp32 or int8.
        attention_backend: auto (cpu if its kernels are built, else torch_ref), cpu, torch_ref or flashinfer.
        block_size: tokens of a KV block.
        num_threads: engine threads; 0 takes all cores of the process's affinity mask.
    """

    model_path: Path
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    attention_backend: str = "auto"
    block_size: int = 16
    num_threads: int = 0


def load_runner(config: EngineConfig) -> ModelRunner:
    """Load the model and build its runner; attach a pool of `runner.layout.block_bytes` blocks before stepping.

    Log `runner.notes` as warnings.

    Raises:
        ModelError: the model directory is missing, damaged or not supported.
        Unsupported: the backend or dtype cannot work here.
        InvalidRequest: an unknown name.
    """
    model_config = load_model_config(config.model_path)
    return build_runner(config, model_config, load_weights(config.model_path, model_config))


def build_runner(config: EngineConfig, model_config: ModelConfig, weights: Mapping[str, Tensor]) -> ModelRunner:
    """Like `load_runner`, for a model already in memory."""
    library, notes = choose_backend(config.attention_backend, load_library())
    notes += apply_thread_settings(config.num_threads)
    threads = torch.get_num_threads()
    numerics = resolve(config.dtype, config.kv_cache_dtype, _checkpoint_dtype(weights), has_native_path)
    heads = HeadShape(model_config.num_heads, model_config.num_kv_heads, model_config.head_dim)
    attention: AttentionBackend
    ops: Ops
    if library is not None:
        attention, ops = CpuAttention(library, heads, threads), NativeOps(library, threads)
    else:
        attention, ops = TorchRefAttention(heads), TorchOps()
    check_kv_dtype(attention, numerics.kv)
    return ModelRunner(
        model=DecoderModel(model_config, weights, _linear_maker(library, numerics, threads), ops),
        attention=attention,
        layout=KVLayout.of(model_config, config.block_size, numerics.kv),
        numerics_id=numerics_id(attention.name, library.digest if library is not None else "none", numerics),
        notes=(*notes, *numerics.notes),
    )


def choose_backend(name: str, library: KernelLibrary | None) -> tuple[KernelLibrary | None, list[str]]:
    """Return the kernels to use (None: torch_ref) and notes.

    Raises:
        Unsupported: the named backend cannot work here.
        InvalidRequest: unknown name.
    """
    match name:
        case "auto":
            return (library, []) if library is not None else (None, [SLOW_NOTE])
        case "torch_ref":
            return None, []
        case "cpu" if library is not None:
            return library, []
        case "cpu":
            raise Unsupported("attention backend cpu needs the C++ kernels: run python -m common.engine.build")
        case "flashinfer":
            raise Unsupported("attention backend flashinfer needs a CUDA build of the engine; this one runs on the CPU")
    raise InvalidRequest(
        f"unknown attention backend {name!r} (known: {', '.join(BACKENDS)})", param="attention_backend"
    )


def _checkpoint_dtype(weights: Mapping[str, Tensor]) -> torch.dtype:
    """The widest dtype of the matrices, so that keeping it loses nothing."""
    return max((w.dtype for w in weights.values() if w.dim() == 2), key=lambda dtype: (dtype.itemsize, str(dtype)))


def _linear_maker(library: KernelLibrary | None, numerics: Numerics, threads: int) -> MakeLinear:
    """How to build this engine's linears. oneDNN's tile is probed once per shape."""
    tiles: dict[torch.Size, int] = {}

    def make(weight: Tensor, bias: Tensor | None) -> Linear:
        stored = weight.to(numerics.weights)
        if library is None:
            return TorchLinear(stored, bias, numerics.compute)
        if numerics.compute == torch.float32:
            return PackedLinear(library, stored, bias, threads)
        if stored.shape not in tiles:
            tiles[stored.shape] = onednn_tile(stored.shape[0], stored.shape[1], numerics.compute)
        return OneDnnLinear(stored, bias, numerics.compute, tiles[stored.shape])

    return make
