"""What an engine computes with, decided once at load, and the id that names it.

Two workers may share KV only if their `numerics id` is equal: within one id, reusing, moving, batching or chunking
never changes a bit of the logits (on exact backends); across ids it may.

Three dtypes are decided: that of the weights as stored, that in which linears compute, and that of the KV pool. CPUs
whose oneDNN has no bf16 or fp16 path compute in fp32 from the stored weights (widening them is lossless).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from common.base.errors import InvalidRequest
from common.engine.layout import kv_dtype

_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "int8"}


@dataclass(slots=True, frozen=True)
class Numerics:
    """The decided dtypes.

    Attributes:
        weights: format in which linear weights are stored.
        compute: dtype in which linears multiply; sums are fp32.
        kv: dtype of the KV pool.
        notes: what was not granted as asked, one sentence each, for the log.
    """

    weights: torch.dtype
    compute: torch.dtype
    kv: torch.dtype
    notes: tuple[str, ...] = ()


def resolve(
    dtype: str,
    kv_cache_dtype: str,
    checkpoint: torch.dtype,
    has_path: Callable[[torch.dtype], bool],
) -> Numerics:
    """Decide the dtypes.

    Args:
        dtype: auto (the checkpoint's), bf16, fp16 or fp32. fp32 keeps narrower checkpoints in their format, which is
            lossless, and computes in fp32.
        kv_cache_dtype: auto (follows `dtype`), bf16, fp16, fp32 or int8.
        checkpoint: dtype of the weights in the model directory.
        has_path: whether this machine computes linears in a dtype (`has_native_path`).

    Raises:
        InvalidRequest, Unsupported: unknown or unsupported names.
    """
    if dtype != "auto" and dtype not in _DTYPES:
        raise InvalidRequest(f"unknown dtype {dtype!r} (known: auto, bf16, fp16, fp32)", param="dtype")
    wanted = checkpoint if dtype == "auto" else _DTYPES[dtype]
    weights = checkpoint if wanted == torch.float32 else wanted
    kv = wanted if kv_cache_dtype == "auto" else kv_dtype(kv_cache_dtype)
    if wanted == torch.float32 or has_path(wanted):
        return Numerics(weights, wanted, kv)
    note = (
        f"this CPU has no {short_name(wanted)} path for linears: computing in fp32 from {short_name(weights)} weights"
    )
    return Numerics(weights, torch.float32, kv, (note,))


def has_onednn_path(dtype: torch.dtype) -> bool:
    """Whether oneDNN runs a prepacked linear in `dtype` here, found by running one; honours ONEDNN_MAX_CPU_ISA."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight, x = torch.zeros(16, 16, dtype=dtype), torch.zeros(1, 16, dtype=dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except RuntimeError:
        return False
    return True


def has_native_path(dtype: torch.dtype) -> bool:
    """Whether that linear is also fast: oneDNN emulates bf16 where the CPU lacks the instructions."""
    native_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return has_onednn_path(dtype) and (dtype != torch.bfloat16 or native_bf16)


def short_name(dtype: torch.dtype) -> str:
    """fp32, fp16, bf16 or int8."""
    return _SHORT[dtype]


def isa_class() -> str:
    """Instruction sets that decide bits: torch's capability, and AMX where oneDNN would use it."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    flags = [
        name
        for name, check in (
            ("amx", torch.cpu._is_amx_tile_supported),
            ("bf16", lambda: has_onednn_path(torch.bfloat16)),
        )
        if check()
    ]
    return "+".join([capability, *flags])


def numerics_id(backend: str, kernels: str, numerics: Numerics) -> str:
    """The id of an engine with attention `backend` and kernel build digest `kernels` ("none" without)."""
    return "/".join(
        [
            "pando-1",
            backend,
            kernels,
            f"compute-{short_name(numerics.compute)}",
            f"weights-{short_name(numerics.weights)}",
            f"kv-{short_name(numerics.kv)}",
            isa_class(),
            f"torch-{torch.__version__}",
        ]
    )
