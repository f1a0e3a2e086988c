"""A row's bits never depend on the rows beside it, its place among them, or the number of threads.

Every operation on the logits path of the cpu backend is run on many rows at once and on parts of them, and each row is
compared bit for bit. The controls show that the comparison sees a kernel that splits its sums by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.engine.attention.base import HeadShape
from common.engine.kernels.library import KernelLibrary, load_library
from common.engine.linear import OneDnnLinear, PackedLinear
from common.engine.ops import HeadNorms, NativeOps, Rotary

RowOp = Callable[[Tensor], Tensor]

SMOLLM2_SHAPES = [(576, 960), (576, 576), (576, 3072), (1536, 576)]
ODD_SHAPES = [(7, 5), (33, 17), (100, 211), (64, 49)]
SPLITS = [1, 2, 3, 5, 6, 7, 11, 12, 13, 31, 32, 33, 63, 64, 65, 127, 255, 257]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    """The built kernels; a missing build is a failure, not a skip."""
    loaded = load_library()
    assert loaded is not None, "the C++ kernels are not built: python -m common.engine.build"
    return loaded


def different_rows(op: RowOp, x: Tensor, whole: Tensor, count: int) -> list[int]:
    """Rows of `whole` that differ when `op` runs over parts of `count` rows."""
    parts = torch.cat([op(part.contiguous()) for part in torch.split(x, count)])
    return [row for row in range(x.shape[0]) if not torch.equal(parts[row], whole[row])]


def random_rows(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SMOLLM2_SHAPES + ODD_SHAPES, ids=str)
def test_packed_linear(library: KernelLibrary, shape: tuple[int, int], dtype: torch.dtype) -> None:
    inputs, outputs = shape
    weight, bias = (random_rows(outputs, inputs, 1) / inputs**0.5).to(dtype), random_rows(1, outputs, 2)[0]
    ops = [PackedLinear(library, weight, bias, threads) for threads in (1, 2, 3)]
    x = random_rows(300, inputs)
    whole = ops[0](x)
    assert torch.allclose(whole, torch.nn.functional.linear(x, weight.float(), bias), atol=1e-4)
    for op in ops:
        for count in SPLITS:
            assert different_rows(op, x, whole, count) == [], f"{count} rows at once"


def test_packed_head_up_to_1100_rows(library: KernelLibrary) -> None:
    weight = random_rows(2048, 576, 1).bfloat16()
    one, two = PackedLinear(library, weight, None, 1), PackedLinear(library, weight, None, 2)
    x = random_rows(1100, 576)
    whole = two(x)
    for count in (1, 256, 513, 1024, 1100):
        assert different_rows(one, x, whole, count) == []


@pytest.mark.parametrize("shape", SMOLLM2_SHAPES, ids=str)
def test_onednn_linear_in_tiles(shape: tuple[int, int]) -> None:
    inputs, outputs = shape
    op = OneDnnLinear(random_rows(outputs, inputs, 1) / inputs**0.5, None, torch.float32, tile=32)
    x = random_rows(200, inputs)
    torch.set_num_threads(1)
    whole = op(x)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for count in (1, 2, 31, 32, 33, 64):
            assert different_rows(op, x, whole, count) == []


@pytest.mark.parametrize("width", [1, 7, 8, 64, 100, 576])
def test_row_operations(library: KernelLibrary, width: int) -> None:
    weight, x, pair = random_rows(1, width, 1)[0], random_rows(150, width), random_rows(150, 2 * width)
    whole_norm = NativeOps(library, 1).rms_norm(x, weight, 1e-5)
    whole_silu = NativeOps(library, 1).silu_mul(pair)
    expected = torch.nn.functional.silu(pair[:, :width].double()) * pair[:, width:].double()
    assert torch.allclose(whole_silu.double(), expected, rtol=1e-5, atol=1e-7)
    for threads in (1, 2):
        ops = NativeOps(library, threads)
        for count in (1, 2, 7, 64, 149):
            assert different_rows(lambda rows, ops=ops: ops.rms_norm(rows, weight, 1e-5), x, whole_norm, count) == []  # type: ignore[misc]
            assert different_rows(ops.silu_mul, pair, whole_silu, count) == []


@pytest.mark.parametrize("head_dim", [2, 16, 34, 64, 128])
@pytest.mark.parametrize("normed", [False, True])
def test_rotation(library: KernelLibrary, head_dim: int, normed: bool) -> None:
    heads = HeadShape(4, 2, head_dim)
    angles = random_rows(90, head_dim // 2)
    rotary = Rotary(heads, angles.cos(), angles.sin(), 1e-6)
    norms = HeadNorms(random_rows(1, head_dim, 5)[0], random_rows(1, head_dim, 6)[0]) if normed else None
    qkv, positions = random_rows(80, 8 * head_dim), torch.arange(80, dtype=torch.int32)

    def rotated(first: int, last: int, threads: int) -> Tensor:
        rows = qkv[first:last].clone()
        NativeOps(library, threads).rotate(rows, positions[first:last].contiguous(), rotary, norms)
        return rows

    whole = rotated(0, 80, 1)
    for first, last in [(0, 1), (3, 4), (0, 79), (40, 80), (79, 80)]:
        for threads in (1, 2):
            assert torch.equal(rotated(first, last, threads), whole[first:last])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 90),
    outputs=st.integers(1, 150),
    threads=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_any_subset_of_rows_of_any_shape(
    library: KernelLibrary,
    *,
    rows: int,
    inputs: int,
    outputs: int,
    threads: int,
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    op = PackedLinear(library, random_rows(outputs, inputs, 1).to(dtype), None, threads)
    x = random_rows(rows, inputs)
    whole = op(x)
    subset = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=20))
    assert torch.equal(op(x[subset].contiguous()), whole[subset])


def test_a_kernel_that_splits_sums_by_rows_is_seen() -> None:
    weight = random_rows(64, 576, 1)

    def by_rows(x: Tensor) -> Tensor:
        parts = 2 if x.shape[0] > 32 else 1
        return sum((a @ w.T for a, w in zip(x.chunk(parts, 1), weight.chunk(parts, 1), strict=True)), torch.zeros(()))

    x = random_rows(64, 576)
    assert different_rows(by_rows, x, by_rows(x), 16) != []


def test_one_flipped_bit_is_seen(library: KernelLibrary) -> None:
    op = PackedLinear(library, random_rows(32, 64, 1), None, 1)
    x = random_rows(8, 64)
    whole = op(x)
    whole[5].view(torch.int32)[3] ^= 1
    assert different_rows(op, x, whole, 3) == [5]
