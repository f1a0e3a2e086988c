"""Linears over fp32 rows: torch's own, oneDNN with prepacked weights, and this project's packed C++ kernel.

All take and return contiguous fp32 rows; what happens inside (weight format, compute dtype) is theirs. `PackedLinear`
is exact by construction: every output element is one chain of fused multiply-adds over the input in order, whatever
the other rows are. oneDNN chooses kernels by the number of rows; `onednn_tile` finds out at load whether that changes
bits for a shape on this CPU, and then rows are run in tiles of one fixed height. ADR 0003 has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from common.base.errors import Unsupported
from common.engine.kernels.library import KernelLibrary, WeightFormat

_WEIGHT_FORMATS = {
    torch.float32: WeightFormat.FP32,
    torch.bfloat16: WeightFormat.BF16,
    torch.float16: WeightFormat.FP16,
}


SAFE_TILE_ROWS = 32
PROBE_ROWS = (1, 2, 7, 16, 31, 33, 65, 256)


class Linear(Protocol):
    """`x @ weight.T + bias`."""

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, in] fp32 contiguous -> [rows, out] fp32 contiguous, a new tensor."""


class TorchLinear:
    """torch's linear in `compute` dtype: the reference."""

    def __init__(self, weight: Tensor, bias: Tensor | None, compute: torch.dtype) -> None:
        self._weight = weight.to(compute)
        self._bias = bias.to(compute) if bias is not None else None
        self._compute = compute

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return torch.nn.functional.linear(x.to(self._compute), self._weight, self._bias).float()


class OneDnnLinear:
    """oneDNN's inner product with a prepacked weight in `compute` dtype (bf16, fp16 or fp32).

    Args:
        weight: [out, in].
        bias: [out] or None.
        compute: a dtype for which `numerics.has_onednn_path` holds.
        tile: rows are run in tiles of exactly this many rows, the last one padded; 0 runs them as they come. See
            `onednn_tile`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, compute: torch.dtype, tile: int) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(compute).contiguous())
        self._bias = bias.to(compute) if bias is not None else None
        self._compute = compute
        self._tile = tile

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        rows = x.to(self._compute)
        if self._tile == 0:
            return self._run(rows).float()
        outputs = [self._run(tile).float() for tile in _padded_tiles(rows, self._tile)]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined[: x.shape[0]]

    def _run(self, rows: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return out


class PackedLinear:
    """The C++ kernel over panels of weights in their own format, computing in fp32 on `num_threads` threads."""

    def __init__(self, library: KernelLibrary, weight: Tensor, bias: Tensor | None, num_threads: int) -> None:
        """Pack `weight` [out, in] (fp32, bf16 or fp16; kept in that format) and fp32 `bias` [out]."""
        self._out_features, self._in_features = weight.shape
        self._format = _WEIGHT_FORMATS[weight.dtype]
        self._library = library
        self._num_threads = num_threads
        self._bias = bias.float().contiguous() if bias is not None else None
        self._panels = torch.empty(library.packed_elements(self._out_features, self._in_features), dtype=weight.dtype)
        source = weight.contiguous()
        library.pack_weight(
            source.data_ptr(), self._panels.data_ptr(), self._out_features, self._in_features, self._format
        )

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        rows = x.shape[0]
        out = torch.empty(rows, self._out_features, dtype=torch.float32)
        self._library.linear(
            x.data_ptr(),
            self._panels.data_ptr(),
            self._bias.data_ptr() if self._bias is not None else None,
            out.data_ptr(),
            rows,
            self._out_features,
            self._in_features,
            self._format,
            self._num_threads,
        )
        return out


def onednn_tile(out_features: int, in_features: int, compute: torch.dtype) -> int:
    """Return the `tile` with which an `OneDnnLinear` of this shape is row-invariant here: 0 if possible.

    Runs a few hundred rows through a random weight: milliseconds on a CPU with a native path for `compute`.

    Raises:
        Unsupported: rows change bits even in fixed tiles.
    """
    weight = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(0))
    for tile in (0, SAFE_TILE_ROWS):
        if is_row_invariant(OneDnnLinear(weight, None, compute, tile), in_features):
            return tile
    raise Unsupported(
        f"oneDNN's {in_features}x{out_features} linear in {compute} gives a row other bits beside other rows on this "
        "CPU; use --dtype fp32"
    )


def is_row_invariant(linear: Linear, in_features: int) -> bool:
    """Whether rows keep their bits in calls of PROBE_ROWS rows, at the start and at the end of a larger matrix."""
    x = torch.randn(max(PROBE_ROWS), in_features, generator=torch.Generator().manual_seed(1))
    whole = linear(x)
    return all(
        torch.equal(linear(x[:rows].contiguous()), whole[:rows])
        and torch.equal(linear(x[-rows:].contiguous()), whole[-rows:])
        for rows in PROBE_ROWS
    )


def _padded_tiles(rows: Tensor, tile: int) -> Iterator[Tensor]:
    for first in range(0, rows.shape[0], tile):
        part = rows[first : first + tile]
        missing = tile - part.shape[0]
        yield torch.nn.functional.pad(part, (0, 0, 0, missing)) if missing else part
