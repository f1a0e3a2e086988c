"""The int8 rule: which values and scales a row gets, and that two implementations agree on every byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.engine.attention.base import AttentionBackend, HeadShape, PagedBatch
from common.engine.attention.cpu import CpuAttention
from common.engine.attention.torch_ref import TorchRefAttention
from common.engine.kernels.library import load_library
from common.engine.layout import KVLayout, LayerPool
from common.engine.quant import dequantise, dequantise_keys, quantise, quantise_keys, spread

HEADS = HeadShape(3, 3, 20)
NAN, INF = float("nan"), float("inf")
LARGEST_FP32 = torch.finfo(torch.float32).max
ODD_ROWS = [
    [0.0] * 20,
    [-0.0] * 20,
    [1e-45] * 20,
    [1e-40, -3e-40] * 10,
    [LARGEST_FP32, -LARGEST_FP32] * 10,
    [1.0, NAN] * 10,
    [INF] * 20,
    [-INF, 0.0] * 10,
    [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 3.49] * 2,
]


def test_a_row_gets_its_largest_value_as_127_and_ties_to_even() -> None:
    values, scales = quantise(torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 3.49]))
    assert float(scales) == 1.0
    assert values.tolist() == [127, 0, 2, 2, 0, -2, -2, 126, -126, 3]


def test_each_head_of_each_token_has_its_own_scale() -> None:
    rows = torch.tensor([[[1.0, -2.0], [0.1, 0.05]], [[1000.0, 0.0], [0.0, 0.0]]])
    values, scales = quantise(rows)
    assert values.tolist() == [[[64, -127], [127, 64]], [[127, 0], [0, 0]]]
    assert (values.dtype, scales.dtype, scales.shape) == (torch.int8, torch.bfloat16, (2, 2))
    torch.testing.assert_close(dequantise(values, scales), rows, rtol=0.01, atol=0.004)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-20, 1e20))
def test_the_error_is_at_most_half_a_step(seed: int, size: float) -> None:
    rows = size * torch.randn(16, 64, generator=torch.Generator().manual_seed(seed))
    values, scales = quantise(rows)
    steps = ((dequantise(values, scales).double() - rows.double()) / scales.double()[:, None]).abs()
    assert steps.max() <= 0.5 + 1e-5


def test_rows_without_a_finite_scale_read_as_nan_and_zeros_as_zeros() -> None:
    read = dequantise(*quantise(torch.tensor(ODD_ROWS)))
    assert read[:2].eq(0).all()
    assert read[5:8].isnan().all()
    assert read[[2, 3, 4, 8]].isfinite().all()


@pytest.mark.parametrize("head_dim", [1, 34, 48, 64])
def test_spreading_keeps_products(head_dim: int) -> None:
    q, k = torch.randn(2, 50, head_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    run = head_dim & -head_dim
    torch.testing.assert_close((spread(q) * spread(k)).sum(-1) / run, (q * k).sum(-1))
    torch.testing.assert_close(spread(spread(k)) / run, k)


def test_a_large_channel_of_k_does_not_take_all_the_steps() -> None:
    rows = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    rows[:, 5] += 40
    plain = (dequantise(*quantise(rows)) - rows).square().mean().sqrt()
    assert (dequantise_keys(*quantise_keys(rows)) - rows).square().mean().sqrt() < 0.4 * plain


def stored(attention: AttentionBackend, rows: torch.Tensor) -> tuple[bytes, torch.Tensor]:
    """The pool's bytes after `attention` has stored `rows` [tokens, heads, dim] as K and V, and what it returned."""
    layout = KVLayout(1, 4, HEADS.num_kv_heads, HEADS.head_dim, torch.int8)
    blocks = -(-len(rows) // 4)
    pool = bytearray(blocks * layout.block_bytes)
    attention.attach(layout.layer_views(memoryview(pool), blocks))
    attention.plan(PagedBatch.build([0], [len(rows)], [list(range(blocks))], 4))
    qkv = torch.cat([torch.ones_like(rows), rows, rows.flip(1)], dim=1)
    return bytes(pool), attention.run(0, *qkv.chunk(3, dim=1))


def native() -> CpuAttention:
    library = load_library()
    assert library is not None, "the C++ kernels are not built: python -m common.engine.build"
    return CpuAttention(library, HEADS, 2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.floats(1e-38, 1e30), odd=st.lists(st.integers(0, len(ODD_ROWS) - 1)))
def test_the_kernel_stores_the_same_bytes(seed: int, size: float, odd: list[int]) -> None:
    rows = size * torch.randn(16 + len(odd), HEADS.num_kv_heads, HEADS.head_dim, generator=torch.manual_seed(seed))
    for place, row in enumerate(odd):
        rows[1 + place, place % HEADS.num_kv_heads] = torch.tensor(ODD_ROWS[row])
    assert stored(native(), rows)[0] == stored(TorchRefAttention(HEADS), rows)[0]


@pytest.mark.parametrize("attention", [native(), TorchRefAttention(HEADS)], ids=lambda a: a.name)
def test_a_row_that_is_not_finite_spoils_what_sees_it_and_no_other_head(attention: AttentionBackend) -> None:
    rows = torch.randn(8, HEADS.num_kv_heads, HEADS.head_dim, generator=torch.Generator().manual_seed(0))
    rows[5, 0, 3] = INF
    out = stored(attention, rows)[1].view(8, HEADS.num_heads, HEADS.head_dim)
    assert out[5:, 0].isnan().all()
    assert out[:, 1].isfinite().all()


def test_pools_carry_scales_only_with_int8() -> None:
    pools: dict[torch.dtype, LayerPool] = {}
    for dtype in (torch.int8, torch.bfloat16):
        layout = KVLayout(1, 4, 2, 8, dtype)
        pools[dtype] = layout.layer_views(memoryview(bytearray(layout.block_bytes)), 1)[0]
    assert pools[torch.int8].scales is not None
    assert pools[torch.bfloat16].scales is None
