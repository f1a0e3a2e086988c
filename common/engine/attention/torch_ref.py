"""Reference attention in plain torch: simple, slow, runs anywhere; the oracle of the other backends.

It gathers each sequence's KV and computes a full softmax. It is right within rounding, but not exact: torch chooses
other kernels for other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.engine.attention.base import HeadShape, PagedBatch
from common.engine.layout import LayerPool
from common.engine.quant import dequantise, dequantise_keys, quantise, quantise_keys


class TorchRefAttention:
    """See the module. Keeps views of the pool and the current step's slot numbers only."""

    name = "torch_ref"
    exact = False
    kv_dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16, torch.int8)

    def __init__(self, heads: HeadShape) -> None:
        self._heads = heads
        self._pool: Sequence[LayerPool] = ()
        self._sequences: list[tuple[slice, Tensor, Tensor]] = []

    def attach(self, pool: Sequence[LayerPool]) -> None:
        """See `AttentionBackend.attach`."""
        self._pool = pool

    def plan(self, batch: PagedBatch) -> None:
        """Work out each sequence's rows, block ids and offsets of its positions."""
        self._sequences = []
        for i, kv_len in enumerate(batch.kv_lens.tolist()):
            pages = batch.kv_page_indices[batch.kv_page_indptr[i] : batch.kv_page_indptr[i + 1]]
            positions = np.arange(kv_len)
            blocks = torch.from_numpy(pages[positions // batch.block_size].astype(np.int64))
            offsets = torch.from_numpy(positions % batch.block_size)
            rows = slice(int(batch.qo_indptr[i]), int(batch.qo_indptr[i + 1]))
            self._sequences.append((rows, blocks, offsets))

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `AttentionBackend.run`."""
        pool = self._pool[layer]
        out = torch.empty(q.shape[0], self._heads.num_heads * self._heads.head_dim, dtype=torch.float32)
        for rows, blocks, offsets in self._sequences:
            new = rows.stop - rows.start
            _write(pool, blocks[-new:], offsets[-new:], k[rows], v[rows])
            keys, values = _read(pool, blocks, offsets)
            out[rows] = causal_attention(q[rows], keys, values, self._heads.scale).flatten(1)
        return out


def _write(pool: LayerPool, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
    """Store k, v [n, num_kv_heads, head_dim] in n slots."""
    if pool.scales is None:
        pool.k[blocks, offsets] = k.to(pool.k.dtype)
        pool.v[blocks, offsets] = v.to(pool.v.dtype)
        return
    pool.k[blocks, offsets], pool.scales.k[blocks, offsets] = quantise_keys(k)
    pool.v[blocks, offsets], pool.scales.v[blocks, offsets] = quantise(v)


def _read(pool: LayerPool, blocks: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """K and V [n, num_kv_heads, head_dim] of n slots in fp32."""
    k, v = pool.k[blocks, offsets], pool.v[blocks, offsets]
    if pool.scales is None:
        return k.float(), v.float()
    return dequantise_keys(k, pool.scales.k[blocks, offsets]), dequantise(v, pool.scales.v[blocks, offsets])


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of the last positions of a sequence over all of it.

    Args:
        q: [new, num_heads, head_dim]; its rows are the last `new` positions.
        k, v: [total, num_kv_heads, head_dim].
        scale: factor on q . k.

    Returns:
        [new, num_heads, head_dim].
    """
    new, num_heads, head_dim = q.shape
    total, num_kv_heads, _ = k.shape
    grouped = q.reshape(new, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("qkgd,tkd->kgqt", grouped, k) * scale
    future = torch.arange(total)[None, :] > torch.arange(total - new, total)[:, None]
    probabilities = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return torch.einsum("kgqt,tkd->qkgd", probabilities, v).reshape(new, num_heads, head_dim)
