"""The three linears agree, and the load-time probe tells a row-invariant kernel from one that is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from common.engine.kernels.library import load_library
from common.engine.linear import Linear, OneDnnLinear, PackedLinear, TorchLinear, is_row_invariant, onednn_tile


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 70])
def test_all_linears_agree(rows: int, biased: bool) -> None:
    library = load_library()
    assert library is not None, "the C++ kernels are not built: python -m common.engine.build"
    weight, x = torch.randn(90, 48) / 7, torch.randn(rows, 48)
    bias = torch.randn(90) if biased else None
    expected = x @ weight.T + (bias if bias is not None else 0)
    linears: list[Linear] = [
        TorchLinear(weight, bias, torch.float32),
        OneDnnLinear(weight, bias, torch.float32, tile=0),
        OneDnnLinear(weight, bias, torch.float32, tile=32),
        PackedLinear(library, weight, bias, 2),
    ]
    for linear in linears:
        out = linear(x)
        assert out.dtype == torch.float32
        assert out.is_contiguous()
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_packed_bf16_weights_are_widened_exactly() -> None:
    library = load_library()
    assert library is not None
    weight, x = (torch.randn(40, 30) / 5).bfloat16(), torch.randn(9, 30)
    assert torch.equal(PackedLinear(library, weight, None, 1)(x), PackedLinear(library, weight.float(), None, 1)(x))


def test_the_probe_passes_onednn_fp32_in_some_tile() -> None:
    tile = onednn_tile(96, 64, torch.float32)
    assert tile in (0, 32)
    assert is_row_invariant(OneDnnLinear(torch.randn(96, 64), None, torch.float32, tile), 64)


def test_the_probe_sees_a_kernel_that_depends_on_the_number_of_rows() -> None:
    weight = torch.randn(96, 64)

    def by_rows(x: Tensor) -> Tensor:
        if x.shape[0] > 32:
            return x[:, :32] @ weight.T[:32] + x[:, 32:] @ weight.T[32:]
        return x @ weight.T

    assert not is_row_invariant(by_rows, 64)
