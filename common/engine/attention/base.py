"""The interface between the decoder and an attention backend, in the shape of FlashInfer's paged wrappers.

`plan` is called once per step with CSR-like index arrays, `run` once per layer. `run` writes the step's K and V into
the pool slots of their positions and then attends causally over everything the sequence has in the pool, so a token
always attends to KV as it is stored (rounded or quantised to the KV dtype), whether it was computed now, earlier or
elsewhere.

A backend may be *exact*: a query row's result has the same bits whatever other rows, sequences, block ids or thread
counts share the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.base.errors import Unsupported
from common.engine.layout import LayerPool
from common.engine.numerics import short_name

Ints = npt.NDArray[np.int32]


@dataclass(slots=True, frozen=True)
class HeadShape:
    """Attention heads of a model. `num_heads` is a multiple of `num_kv_heads`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        """Factor on q . k before the softmax."""
        return float(self.head_dim**-0.5)


@dataclass(slots=True, frozen=True)
class PagedBatch:
    """Which rows and blocks belong to which sequence of a step. All int32.

    Attributes:
        qo_indptr: [n + 1]; rows `qo_indptr[i] .. qo_indptr[i + 1]` of q are sequence i's new tokens.
        kv_page_indptr: [n + 1]; ditto for `kv_page_indices`.
        kv_page_indices: physical block ids of each sequence, in order.
        kv_last_page_len: [n]; tokens in the last block once this step is written, 1 .. block_size.
        block_size: tokens of a block.
    """

    qo_indptr: Ints
    kv_page_indptr: Ints
    kv_page_indices: Ints
    kv_last_page_len: Ints
    block_size: int

    @classmethod
    def build(
        cls, starts: Sequence[int], lengths: Sequence[int], tables: Sequence[Sequence[int]], block_size: int
    ) -> PagedBatch:
        """Index arrays for sequences that compute `lengths[i]` tokens from position `starts[i]` on.

        `tables[i]` may be longer than needed; only blocks that hold positions up to the last new token are used.
        """
        ends = np.asarray(starts, np.int32) + np.asarray(lengths, np.int32)
        pages = -(-ends // block_size)
        for table, needed in zip(tables, pages, strict=True):
            assert len(table) >= needed, f"block table has {len(table)} blocks, {needed} needed"
        indices = [np.asarray(table[:needed], np.int32) for table, needed in zip(tables, pages, strict=True)]
        return cls(
            qo_indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            kv_page_indptr=np.concatenate([[0], np.cumsum(pages)]).astype(np.int32),
            kv_page_indices=np.concatenate(indices) if indices else np.zeros(0, np.int32),
            kv_last_page_len=(ends - (pages - 1) * block_size).astype(np.int32),
            block_size=block_size,
        )

    @property
    def kv_lens(self) -> Ints:
        """[n]: tokens each sequence has once this step is written."""
        return ((np.diff(self.kv_page_indptr) - 1) * self.block_size + self.kv_last_page_len).astype(np.int32)


class AttentionBackend(Protocol):
    """One way to attend over the paged pool. Used by the engine thread only.

    Attributes:
        name: what `--attention-backend` calls it.
        exact: see the module.
        kv_dtypes: dtypes of the pools it can work with; checked at start by `check_kv_dtype`.
    """

    name: str
    exact: bool
    kv_dtypes: tuple[torch.dtype, ...]

    def attach(self, pool: Sequence[LayerPool]) -> None:
        """Use these per-layer views of the pool from now on."""

    def plan(self, batch: PagedBatch) -> None:
        """Prepare for the step of `batch`; valid until the next call."""

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store this step's k, v and attend.

        Args:
            layer: index of the layer.
            q: [num_tokens, num_heads, head_dim] fp32, rotated; rows may be strided.
            k, v: [num_tokens, num_kv_heads, head_dim] fp32, k rotated; rows may be strided.

        Returns:
            [num_tokens, num_heads * head_dim] fp32, contiguous.
        """


def check_kv_dtype(backend: AttentionBackend, dtype: torch.dtype) -> None:
    """Raise Unsupported unless `backend` can work with a pool of `dtype`."""
    if dtype not in backend.kv_dtypes:
        known = ", ".join(short_name(each) for each in backend.kv_dtypes)
        raise Unsupported(
            f"attention backend {backend.name} cannot keep KV as {short_name(dtype)}; --kv-cache-dtype may be {known}"
        )
