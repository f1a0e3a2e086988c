"""Attention by this project's C++ kernel: exact and fast on CPUs. The arithmetic is in cpu_attention.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.engine.attention.base import HeadShape, PagedBatch
from common.engine.kernels.library import KernelLibrary, KvFormat, PagedAttentionArgs
from common.engine.layout import LayerPool

_FORMATS = {
    torch.float32: KvFormat.FP32,
    torch.bfloat16: KvFormat.BF16,
    torch.float16: KvFormat.FP16,
    torch.int8: KvFormat.INT8,
}


class CpuAttention:
    """See the module. Keeps views of the pool and the current step's index arrays."""

    name = "cpu"
    exact = True
    kv_dtypes: tuple[torch.dtype, ...] = tuple(_FORMATS)

    def __init__(self, library: KernelLibrary, heads: HeadShape, num_threads: int) -> None:
        self._library = library
        self._pool: Sequence[LayerPool] = ()
        self._args = PagedAttentionArgs(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            scale=heads.scale,
            num_threads=num_threads,
        )
        self._held: list[np.ndarray] = []
        self._width = heads.num_heads * heads.head_dim

    def attach(self, pool: Sequence[LayerPool]) -> None:
        """See `AttentionBackend.attach`."""
        self._pool = pool
        if pool:
            self._args.block_stride = pool[0].k.stride(0)
            self._args.kv_format = _FORMATS[pool[0].k.dtype]
            scales = pool[0].scales
            self._args.scale_block_stride = scales.k.stride(0) if scales is not None else 0

    def plan(self, batch: PagedBatch) -> None:
        """Point the kernel at the index arrays of `batch`."""
        arrays = {
            "qo_indptr": batch.qo_indptr,
            "kv_page_indptr": batch.kv_page_indptr,
            "kv_page_indices": batch.kv_page_indices,
            "kv_lens": batch.kv_lens,
        }
        self._held = list(arrays.values())  # keeps alive what the kernel has the addresses of
        for name, array in arrays.items():
            setattr(self._args, name, array.ctypes.data)
        self._args.num_sequences = len(batch.kv_last_page_len)
        self._args.block_size = batch.block_size

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `AttentionBackend.run`; q, k, v must be rows of one matrix."""
        pool, args = self._pool[layer], self._args
        out = torch.empty(q.shape[0], self._width, dtype=torch.float32)
        args.q, args.k, args.v, args.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        args.k_pool, args.v_pool = pool.k.data_ptr(), pool.v.data_ptr()
        if pool.scales is not None:
            args.k_scales, args.v_scales = pool.scales.k.data_ptr(), pool.scales.v.data_ptr()
        args.row_stride = q.stride(0)
        self._library.attention(ctypes.byref(args))
        return out
