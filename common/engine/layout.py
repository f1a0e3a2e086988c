"""The bytes of a KV block, and the tensor views of a pool of them.

One block is one contiguous extent `[num_layers, 2, block_size, num_kv_heads, head_dim]` (K before V), padded to 16
bytes, so that a move between tiers, machines or disk is one copy. An int8 block ends in the scales of its rows, a row
being one head of one token, `[num_layers, 2, block_size, num_kv_heads]`, padded to 16 bytes too (`common.engine.quant`
says what they mean). The pool's memory belongs to the transport region that allocated it; this module only makes
strided views over it::

    pool   | block 0                                                          | block 1 ...
    block  | layer 0: K slots, V slots | layer 1: ... | pad | scales, int8 only | pad
    slots  | block_size x [num_kv_heads, head_dim]

It does not know which blocks are in use.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.base.errors import InvalidRequest, Unsupported
from common.base.model_config import ModelConfig
from common.engine.quant import RULE, SCALE_DTYPE

BLOCK_ALIGNMENT_BYTES = 16

_KV_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
_KNOWN = ", ".join(("auto", *_KV_DTYPES))


def kv_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a KV cache dtype `name` (fp32, fp16, bf16 or int8).

    Raises:
        Unsupported: fp8 formats are reserved.
        InvalidRequest: any other name.
    """
    if name.startswith("fp8"):
        raise Unsupported(f"KV cache dtype {name} is not supported; use one of {_KNOWN}")
    if name not in _KV_DTYPES:
        raise InvalidRequest(f"unknown KV cache dtype {name!r} (known: {_KNOWN})", param="kv_cache_dtype")
    return _KV_DTYPES[name]


@dataclass(slots=True, frozen=True)
class Int8Scales:
    """Scales of one layer over the whole pool: `k`, `v`: [num_blocks, block_size, num_kv_heads] bf16, strided."""

    k: Tensor
    v: Tensor


@dataclass(slots=True, frozen=True)
class LayerPool:
    """Views of one layer over the whole pool: `k`, `v`: [num_blocks, block_size, num_kv_heads, head_dim], strided.

    `scales` belong to int8 values and to no others.
    """

    k: Tensor
    v: Tensor
    scales: Int8Scales | None = None


@dataclass(slots=True, frozen=True)
class KVLayout:
    """Shape of one KV block. Two workers exchange blocks only if their `layout_digest` is the same."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: ModelConfig, block_size: int, dtype: torch.dtype) -> KVLayout:
        """Layout for the model of `config`."""
        return cls(config.num_layers, block_size, config.num_kv_heads, config.head_dim, dtype)

    @property
    def token_elements(self) -> int:
        """Elements of K (or V) of one token in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, a multiple of 16."""
        return self.value_bytes + (_aligned(self._rows * SCALE_DTYPE.itemsize) if self.is_scaled else 0)

    @property
    def value_bytes(self) -> int:
        """Bytes of a block before its scales, a multiple of 16."""
        return _aligned(self._rows * self.head_dim * self.dtype.itemsize)

    @property
    def is_scaled(self) -> bool:
        """Whether rows have scales."""
        return self.dtype == torch.int8

    @property
    def _rows(self) -> int:
        """Heads of tokens of a block, K and V, all layers."""
        return self.num_layers * 2 * self.block_size * self.num_kv_heads

    def layout_digest(self) -> bytes:
        """32 bytes that name this layout; part of the block namespace and of the worker handshake."""
        text = (
            f"pando-kv-1 [{self.num_layers},2,{self.block_size},{self.num_kv_heads},{self.head_dim}] "
            f"{self.dtype} align {BLOCK_ALIGNMENT_BYTES} little-endian"
        )
        if self.is_scaled:
            text += (
                f" then [{self.num_layers},2,{self.block_size},{self.num_kv_heads}] {SCALE_DTYPE} "
                f"at {self.value_bytes}: {RULE}"
            )
        return hashlib.sha256(text.encode()).digest()

    def layer_views(self, buffer: memoryview, num_blocks: int) -> list[LayerPool]:
        """Views of every layer over the first `num_blocks` blocks of `buffer`, which must stay alive and writable.

        Raises:
            InvalidRequest: the buffer is read-only or too small.
        """
        needed = num_blocks * self.block_bytes
        if buffer.readonly or buffer.nbytes < needed:
            raise InvalidRequest(
                f"KV pool of {num_blocks} blocks needs a writable buffer of {needed} bytes, got "
                f"{buffer.nbytes} bytes{' read-only' if buffer.readonly else ''}"
            )
        values = self._view(buffer, num_blocks, self.dtype, 0, (self.head_dim,))
        layers = range(self.num_layers)
        if not self.is_scaled:
            return [LayerPool(values[:, layer, 0], values[:, layer, 1]) for layer in layers]
        scales = self._view(buffer, num_blocks, SCALE_DTYPE, self.value_bytes, ())
        return [
            LayerPool(values[:, layer, 0], values[:, layer, 1], Int8Scales(scales[:, layer, 0], scales[:, layer, 1]))
            for layer in layers
        ]

    def _view(
        self, buffer: memoryview, num_blocks: int, dtype: torch.dtype, first_byte: int, row: tuple[int, ...]
    ) -> Tensor:
        """[num_blocks, num_layers, 2, block_size, num_kv_heads, *row] over what starts at a byte of each block."""
        in_block = (self.num_layers, 2, self.block_size, self.num_kv_heads, *row)
        first = first_byte // dtype.itemsize
        flat = torch.frombuffer(buffer, dtype=dtype, count=num_blocks * self.block_bytes // dtype.itemsize)
        blocks = flat.view(num_blocks, -1)[:, first : first + math.prod(in_block)]
        return blocks.view(num_blocks, *in_block)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
