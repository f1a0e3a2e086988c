"""How a row of K or V becomes int8: the rule in plain torch. The cpu kernel stores the same bytes.

A row is one head of one token: its values depend on that token alone, so neither chunks nor batches nor block
borders change what is stored. With `m` the largest magnitude of the row::

    scale = bf16(m / 127)            rounded to nearest, ties to even
    value = clamp(round(x / scale))  fp32 division; ties to even; -127 .. 127; 0 where the scale is 0
    x    ~= value * scale            exact in fp32: 7 bits times 8 bits

A row with an infinity or NaN gets the scale NaN and values 0: it reads as NaN, so its request fails as it would with
any other KV dtype. bf16 keeps the whole range of fp32, so a scale never overflows; the largest value still rounds to
127, because 2^-9 of it is less than half a step.

K has a few channels much larger than the others, which would take all the steps for themselves. So its rows are
*spread* first: a Walsh-Hadamard transform, a fixed matrix of +1 and -1, makes every value a sum over the head. It keeps
q . k, up to a factor, when q is spread too. V has no such channels and is stored as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE_DTYPE = torch.bfloat16
LARGEST = 127
RULE = f"absmax/{LARGEST} per head of a token, half to even, K Walsh-Hadamard"


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values [..., head_dim] and bf16 scales [...] of fp32 `rows` [..., head_dim]."""
    largest = rows.abs().amax(-1)
    is_finite = largest.isfinite()
    scales = torch.where(is_finite, largest / LARGEST, 0.0).to(SCALE_DTYPE)
    wide = scales.float().unsqueeze(-1)
    steps = (rows / wide).round().clamp(-LARGEST, LARGEST)
    values = torch.where(wide > 0, steps, 0.0).to(torch.int8)
    return values, scales.masked_fill_(~is_finite, float("nan"))


def dequantise(values: Tensor, scales: Tensor) -> Tensor:
    """fp32 rows [..., head_dim] of int8 `values` [..., head_dim] and their `scales` [...]."""
    return values.float() * scales.float().unsqueeze(-1)


def quantise_keys(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Like `quantise`, for rows of K."""
    return quantise(spread(rows))


def dequantise_keys(values: Tensor, scales: Tensor) -> Tensor:
    """Like `dequantise`, for rows of K."""
    rows = dequantise(values, scales)
    return spread(rows) / _run_length(rows.shape[-1])


def spread(rows: Tensor) -> Tensor:
    """The transform of `rows` [..., head_dim], in runs of the largest power of two n that divides head_dim.

    Not normalised: twice is n times `rows`. Each stage adds and subtracts in fp32, so every implementation that does
    the same stages has the same bits.
    """
    run = _run_length(rows.shape[-1])
    half = 1
    while half < run:
        pairs = rows.reshape(*rows.shape[:-1], -1, 2, half)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        rows = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        half *= 2
    return rows


def _run_length(head_dim: int) -> int:
    return head_dim & -head_dim
