"""The bytes of a KV block, and the tensor views of a pool of them.

One block is one contiguous extent `[num_layers, 2, block_size, num_kv_heads, head_dim]` (K before V), padded to 16
bytes, so that a move between tiers, machines or disk is one copy. The pool's memory belongs to the transport region
that allocated it; this module only makes strided views over it::

    pool   | block 0                        | block 1 ...
    block  | layer 0: K slots, V slots | layer 1: ... | pad
    slots  | block_size x [num_kv_heads, head_dim]

It does not know which blocks are in use.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from common.base.errors import InvalidRequest, Unsupported
from common.base.model_config import ModelConfig

BLOCK_ALIGNMENT_BYTES = 16

_KV_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def kv_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a KV cache dtype `name` (fp32, fp16 or bf16).

    Raises:
        Unsupported: int8 is reserved for a later format.
        InvalidRequest: any other name.
    """
    if name == "int8":
        raise Unsupported("KV cache dtype int8 is not supported yet; use bf16, fp16 or fp32")
    if name not in _KV_DTYPES:
        raise InvalidRequest(
            f"unknown KV cache dtype {name!r} (known: {', '.join(_KV_DTYPES)})", param="kv_cache_dtype"
        )
    return _KV_DTYPES[name]


@dataclass(slots=True, frozen=True)
class LayerPool:
    """Views of one layer over the whole pool: `k`, `v`: [num_blocks, block_size, num_kv_heads, head_dim], strided."""

    k: Tensor
    v: Tensor


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
        elements = self.num_layers * 2 * self.block_size * self.token_elements
        return -(-elements * self.dtype.itemsize // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES

    def layout_digest(self) -> bytes:
        """32 bytes that name this layout; part of the block namespace and of the worker handshake."""
        text = (
            f"pando-kv-1 [{self.num_layers},2,{self.block_size},{self.num_kv_heads},{self.head_dim}] "
            f"{self.dtype} align {BLOCK_ALIGNMENT_BYTES} little-endian"
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
        flat = torch.frombuffer(buffer, dtype=self.dtype, count=needed // self.dtype.itemsize)
        side = self.block_size * self.token_elements
        shape = (num_blocks, self.block_size, self.num_kv_heads, self.head_dim)
        strides = (self.block_bytes // self.dtype.itemsize, self.token_elements, self.head_dim, 1)
        return [
            LayerPool(
                k=flat.as_strided(shape, strides, 2 * layer * side),
                v=flat.as_strided(shape, strides, (2 * layer + 1) * side),
            )
            for layer in range(self.num_layers)
        ]
