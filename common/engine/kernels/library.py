"""ctypes binding of the C++ kernels, and the question whether they are built.

The kernels are plain C functions over pointers: no torch header is needed, one shared object serves every torch
version, and the calls release the GIL. Pointers must come from live, contiguous tensors; nothing is checked here.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path

from common.engine.build import KERNELS


class WeightFormat(IntEnum):
    """Element type of packed weights, as the kernels number them."""

    FP32 = 0
    BF16 = 1
    FP16 = 2


class KvFormat(IntEnum):
    """Element type of the KV pool; the first three are numbered as in `WeightFormat`."""

    FP32 = 0
    BF16 = 1
    FP16 = 2
    INT8 = 3


class PagedAttentionArgs(ctypes.Structure):
    """Arguments of one attention call; mirrors `PagedAttentionArgs` in cpu_attention.cpp."""

    _fields_ = (
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("out", c_void_p),
        ("k_pool", c_void_p),
        ("v_pool", c_void_p),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("qo_indptr", c_void_p),
        ("kv_page_indptr", c_void_p),
        ("kv_page_indices", c_void_p),
        ("kv_lens", c_void_p),
        ("row_stride", c_int64),
        ("block_stride", c_int64),
        ("scale_block_stride", c_int64),
        ("num_sequences", c_int64),
        ("block_size", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("scale", c_float),
        ("kv_format", c_int),
        ("num_threads", c_int),
    )


class KernelLibrary:
    """The loaded shared object. `digest` names its arithmetic: source, flags and vector width."""

    def __init__(self, path: Path) -> None:
        """Load `path`.

        Raises:
            OSError: it is missing or does not load on this machine.
        """
        library = ctypes.CDLL(str(path))
        lanes = _bind(library.pando_vector_lanes, result=c_int)()
        self.digest = f"{path.stem.split('-')[2]}x{lanes}"
        self.packed_elements = _bind(library.pando_packed_elements, c_int64, c_int64, result=c_int64)
        self.pack_weight = _bind(library.pando_pack_weight, c_void_p, c_void_p, c_int64, c_int64, c_int)
        self.linear = _bind(library.pando_linear, *[c_void_p] * 4, *[c_int64] * 3, c_int, c_int)
        self.rms_norm = _bind(library.pando_rms_norm, *[c_void_p] * 3, c_int64, c_int64, c_float, c_int)
        self.rotate = _bind(library.pando_rotate, *[c_void_p] * 6, *[c_int64] * 4, c_float, c_int)
        self.silu_mul = _bind(library.pando_silu_mul, c_void_p, c_void_p, c_int64, c_int64, c_int)
        self.attention = _bind(library.pando_paged_attention, ctypes.POINTER(PagedAttentionArgs))


def load_library() -> KernelLibrary | None:
    """Return the kernels of this source and machine, or None when `python -m common.engine.build` has not run."""
    path = KERNELS.path()
    return KernelLibrary(path) if path.exists() else None


def _bind(function: ctypes._NamedFuncPointer, *arguments: type, result: type | None = None) -> ctypes._NamedFuncPointer:
    function.argtypes = list(arguments)
    function.restype = result
    return function
