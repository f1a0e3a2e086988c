"""Both attention backends against a naive softmax over a plain KV history, through paged pools full of NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine.attention.base import AttentionBackend, HeadShape, PagedBatch
from common.engine.attention.cpu import CpuAttention
from common.engine.attention.torch_ref import TorchRefAttention
from common.engine.kernels.library import load_library
from common.engine.layout import KVLayout
from common.engine.quant import dequantise, dequantise_keys, quantise, quantise_keys

NUM_BLOCKS = 40
SHAPES = [HeadShape(4, 4, 16), HeadShape(9, 3, 64), HeadShape(8, 1, 34), HeadShape(5, 5, 2), HeadShape(100, 2, 8)]


def backend(name: str, heads: HeadShape) -> AttentionBackend:
    if name == "torch_ref":
        return TorchRefAttention(heads)
    library = load_library()
    assert library is not None, "the C++ kernels are not built: python -m common.engine.build"
    return CpuAttention(library, heads, 2)


def naive(q: Tensor, k: Tensor, v: Tensor, heads: HeadShape, start: int) -> Tensor:
    """fp64, one query row at a time. q: [new, heads, dim]; k, v: [total, kv heads, dim]."""
    group = heads.num_heads // heads.num_kv_heads
    wide_k, wide_v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    rows = []
    for row in range(q.shape[0]):
        seen = start + row + 1
        scores = torch.einsum("hd,thd->ht", q[row].double(), wide_k[:seen]) * heads.scale
        rows.append(torch.einsum("ht,thd->hd", scores.softmax(-1), wide_v[:seen]))
    return torch.stack(rows)


def as_stored(k: Tensor, v: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """fp32 rows as they are read back from a pool of `dtype`."""
    if dtype == torch.int8:
        return dequantise_keys(*quantise_keys(k)), dequantise(*quantise(v))
    return k.to(dtype).float(), v.to(dtype).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["torch_ref", "cpu"])
def test_paged_batch_equals_naive(name: str, heads: HeadShape, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    layout = KVLayout(2, 8, heads.num_kv_heads, heads.head_dim, dtype)
    attention = backend(name, heads)
    attention.attach(layout.layer_views(memoryview(bytearray(b"\xff") * (NUM_BLOCKS * layout.block_bytes)), NUM_BLOCKS))
    free = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
    tables = [free[:18], free[18:21], free[21:40]]
    histories: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * 3
    starts = [0, 0, 0]
    for lengths in ([70, 1, 5], [1, 1, 64], [1, 20, 3], [65, 1, 80]):
        attention.plan(PagedBatch.build(starts, lengths, tables, 8))
        total, width = sum(lengths), heads.num_heads + 2 * heads.num_kv_heads
        qkv = torch.randn(total, width, heads.head_dim, generator=generator)
        q, k, v = qkv.split((heads.num_heads, heads.num_kv_heads, heads.num_kv_heads), dim=1)  # type: ignore[no-untyped-call]
        out = attention.run(1, q, k, v).view(total, heads.num_heads, heads.head_dim)
        first = 0
        for n, length in enumerate(lengths):
            rows = slice(first, first + length)
            stored = as_stored(k[rows], v[rows], dtype)
            histories[n] = tuple(torch.cat(p) if starts[n] else p[1] for p in zip(histories[n], stored, strict=True))  # type: ignore[assignment]
            expected = naive(q[rows], *histories[n], heads, starts[n])
            torch.testing.assert_close(out[rows].double(), expected, atol=2e-5, rtol=1e-4)
            starts[n] += length
            first += length


def test_stored_bytes_are_the_same_on_both_backends() -> None:
    heads = HeadShape(2, 1, 8)
    values = torch.cat([torch.randn(30, 32), torch.full((1, 32), 1e-41), torch.full((1, 32), 65519.0)])
    pools = {}
    for name in ("torch_ref", "cpu"):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            layout = KVLayout(1, 4, 1, 8, dtype)
            pool = bytearray(8 * layout.block_bytes)
            attention = backend(name, heads)
            attention.attach(layout.layer_views(memoryview(pool), 8))
            attention.plan(PagedBatch.build([0], [32], [list(range(8))], 4))
            rows = values.view(32, 4, 8)
            attention.run(0, rows[:, :2], rows[:, 2:3], rows[:, 3:])
            pools[name, dtype] = bytes(pool)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert pools["cpu", dtype] == pools["torch_ref", dtype]


def test_batch_arrays() -> None:
    batch = PagedBatch.build([0, 15, 30], [3, 1, 5], [[7], [4, 9], [1, 2, 3, 99]], 16)
    assert batch.qo_indptr.tolist() == [0, 3, 4, 9]
    assert batch.kv_page_indptr.tolist() == [0, 1, 2, 5]
    assert batch.kv_page_indices.tolist() == [7, 4, 1, 2, 3]
    assert batch.kv_last_page_len.tolist() == [3, 16, 3]
    assert batch.kv_lens.tolist() == [3, 16, 35]
    assert batch.kv_lens.dtype == np.int32


def test_a_short_block_table_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="2 needed"):
        PagedBatch.build([0], [17], [[1]], 16)
