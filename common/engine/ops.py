"""The row operations between the linears: RMS norm, head norm with rotation, gated activation.

Activations are fp32 rows everywhere between the linears, whatever the linears compute in, so one model code serves
all dtypes. `TorchOps` is the reference; `NativeOps` runs the C++ kernels and is exact: a row's result depends on that
row alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from common.engine.attention.base import HeadShape
from common.engine.kernels.library import KernelLibrary


@dataclass(slots=True, frozen=True)
class Rotary:
    """What rotating a step's q and k needs: `cos`, `sin`: [max_position, head_dim / 2] fp32; `eps` of the head norm."""

    heads: HeadShape
    cos: Tensor
    sin: Tensor
    eps: float


@dataclass(slots=True, frozen=True)
class HeadNorms:
    """RMS norm weights over each head of q and k, [head_dim] fp32 (Qwen3)."""

    q: Tensor
    k: Tensor


class Ops(Protocol):
    """Row operations; all tensors fp32 and contiguous."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * weight` per row of x [rows, hidden]."""

    def rotate(self, qkv: Tensor, positions: Tensor, rotary: Rotary, norms: HeadNorms | None) -> None:
        """Norm (if any) and rotate in place the q and k heads of qkv [rows, (num_heads + 2 num_kv_heads) * head_dim].

        positions: [rows] int32.
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` for gate_up [rows, 2 * width] -> [rows, width]."""


class TorchOps:
    """Reference implementation."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    def rotate(self, qkv: Tensor, positions: Tensor, rotary: Rotary, norms: HeadNorms | None) -> None:
        """See `Ops.rotate`."""
        heads = rotary.heads
        rows = qkv.view(qkv.shape[0], -1, heads.head_dim)
        q, k = rows[:, : heads.num_heads], rows[:, heads.num_heads : heads.num_heads + heads.num_kv_heads]
        if norms is not None:
            q.copy_(self.rms_norm(q, norms.q, rotary.eps))
            k.copy_(self.rms_norm(k, norms.k, rotary.eps))
        index = positions.long()
        cos, sin = rotary.cos[index, None, :], rotary.sin[index, None, :]
        for part in (q, k):
            low, high = part.chunk(2, dim=-1)
            part.copy_(torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Ops.silu_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


class NativeOps:
    """The C++ kernels, on `num_threads` threads."""

    def __init__(self, library: KernelLibrary, num_threads: int) -> None:
        self._library = library
        self._num_threads = num_threads

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        out = torch.empty_like(x)
        rows, width = x.shape
        self._library.rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, eps, self._num_threads)
        return out

    def rotate(self, qkv: Tensor, positions: Tensor, rotary: Rotary, norms: HeadNorms | None) -> None:
        """See `Ops.rotate`."""
        heads = rotary.heads
        self._library.rotate(
            qkv.data_ptr(),
            positions.data_ptr(),
            rotary.cos.data_ptr(),
            rotary.sin.data_ptr(),
            norms.q.data_ptr() if norms is not None else None,
            norms.k.data_ptr() if norms is not None else None,
            qkv.shape[0],
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            rotary.eps,
            self._num_threads,
        )

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Ops.silu_mul`."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=torch.float32)
        self._library.silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, width, self._num_threads)
        return out
