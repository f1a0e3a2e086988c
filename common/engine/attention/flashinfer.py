"""Attention by FlashInfer on CUDA devices: the only file that imports flashinfer, and only when it is constructed.

Written against FlashInfer 0.7's paged prefill wrapper, which takes decode rows and prompt chunks in one batch and reads
page strides from the tensors, so that it runs over this project's block-major pool without a copy. It has not been run
by the project's own tests, whose machines have no GPU: `load_runner` refuses it until the rest of the engine can place
its tensors on a device. K and V of a layer must have equal strides; `KVLayout` gives them.

It is not exact: how FlashInfer splits the KV of a row depends on the batch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from common.base.errors import Unsupported
from common.engine.attention.base import HeadShape, PagedBatch, check_kv_dtype
from common.engine.layout import LayerPool

WORKSPACE_BYTES = 128 * 1024 * 1024
KV_LAYOUT = "NHD"  # [page, slot, head, dim], as in KVLayout


class FlashInferAttention:
    """See the module. Holds FlashInfer's workspace and the current step's index tensors on `device`."""

    name = "flashinfer"
    exact = False
    kv_dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)

    def __init__(self, heads: HeadShape, device: torch.device) -> None:
        """Import flashinfer and allocate its workspace.

        Raises:
            Unsupported: flashinfer is not installed, or there is no CUDA device.
        """
        if not torch.cuda.is_available():
            raise Unsupported("attention backend flashinfer needs a CUDA device")
        try:
            self._flashinfer: Any = importlib.import_module("flashinfer")
        except ImportError as error:
            raise Unsupported(f"attention backend flashinfer is not installed: {error}") from error
        self._heads = heads
        self._device = device
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper = self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, KV_LAYOUT)
        self._pool: Sequence[LayerPool] = ()
        self._pages: tuple[Tensor, Tensor, Tensor] | None = None
        self._slots: tuple[Tensor, Tensor] | None = None

    def attach(self, pool: Sequence[LayerPool]) -> None:
        """See `AttentionBackend.attach`.

        Raises:
            Unsupported: the pool's dtype is not one of FlashInfer's 16-bit ones.
        """
        if pool:
            check_kv_dtype(self, pool[0].k.dtype)
        self._pool = pool

    def plan(self, batch: PagedBatch) -> None:
        """Move the index arrays to the device and let FlashInfer plan the step."""
        dtype = self._pool[0].k.dtype
        qo_indptr, indptr, indices, last, lens = (
            torch.from_numpy(array).to(self._device)
            for array in (
                batch.qo_indptr,
                batch.kv_page_indptr,
                batch.kv_page_indices,
                batch.kv_last_page_len,
                batch.kv_lens,
            )
        )
        self._pages = (indptr, indices, last)
        self._slots = self._flashinfer.get_batch_indices_positions(qo_indptr, lens, int(batch.qo_indptr[-1]))
        self._wrapper.plan(
            qo_indptr,
            indptr,
            indices,
            last,
            self._heads.num_heads,
            self._heads.num_kv_heads,
            self._heads.head_dim,
            batch.block_size,
            causal=True,
            sm_scale=self._heads.scale,
            q_data_type=dtype,
            kv_data_type=dtype,
        )

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `AttentionBackend.run`."""
        assert self._pages is not None, "run before plan"
        assert self._slots is not None, "run before plan"
        indptr, indices, last = self._pages
        batch_indices, positions = self._slots
        cache = (self._pool[layer].k, self._pool[layer].v)
        dtype = cache[0].dtype
        self._flashinfer.append_paged_kv_cache(
            k.to(dtype), v.to(dtype), batch_indices, positions, cache, indices, indptr, last, KV_LAYOUT
        )
        out: Tensor = self._wrapper.run(q.to(dtype).contiguous(), cache)
        return out.flatten(1).float()
