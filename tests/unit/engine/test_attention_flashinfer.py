"""The FlashInfer backend over a stand-in for the library: what it hands over, and clear refusals without it."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest
import torch

from common.base.errors import Unsupported
from common.engine.attention.base import HeadShape, PagedBatch
from common.engine.attention.flashinfer import FlashInferAttention
from common.engine.layout import KVLayout


class FakeWrapper:
    """Remembers its plan; its attention returns q."""

    planned: tuple[Any, ...] = ()

    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert layout == "NHD"

    def plan(self, *args: Any, **kwargs: Any) -> None:
        FakeWrapper.planned = (*args, kwargs)

    def run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert cache[0].stride() == cache[1].stride(), "K and V of a layer must have equal strides"
        return q


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Install the stand-in; returns the arguments of every append."""
    calls: list[tuple[Any, ...]] = []
    module = types.SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=FakeWrapper,
        get_batch_indices_positions=lambda indptr, lens, nnz: (torch.zeros(nnz), torch.arange(nnz)),
        append_paged_kv_cache=lambda *args: calls.append(args),
    )
    monkeypatch.setitem(sys.modules, "flashinfer", module)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return calls


def test_it_plans_in_flashinfers_terms(appended: list[tuple[Any, ...]]) -> None:
    attention = FlashInferAttention(HeadShape(4, 2, 8), torch.device("cpu"))
    layout = KVLayout(2, 4, 2, 8, torch.bfloat16)
    attention.attach(layout.layer_views(memoryview(bytearray(5 * layout.block_bytes)), 5))
    attention.plan(PagedBatch.build([0, 3], [2, 1], [[1], [4]], 4))
    qo, indptr, indices, last, heads, kv_heads, dim, page, options = FakeWrapper.planned
    assert [t.tolist() for t in (qo, indptr, indices, last)] == [[0, 2, 3], [0, 1, 2], [1, 4], [2, 4]]
    assert (heads, kv_heads, dim, page) == (4, 2, 8, 4)
    assert options["causal"] is True
    assert options["kv_data_type"] == torch.bfloat16
    q, kv = torch.ones(3, 4, 8), torch.ones(3, 2, 8)
    out = attention.run(1, q, kv, kv)
    assert (out.shape, out.dtype) == ((3, 32), torch.float32)
    assert appended[0][0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_other_pools_are_refused(appended: list[tuple[Any, ...]], dtype: torch.dtype) -> None:
    attention = FlashInferAttention(HeadShape(4, 2, 8), torch.device("cpu"))
    layout = KVLayout(1, 4, 2, 8, dtype)
    with pytest.raises(Unsupported, match=r"flashinfer cannot keep KV as .*; --kv-cache-dtype may be fp16, bf16"):
        attention.attach(layout.layer_views(memoryview(bytearray(layout.block_bytes)), 1))


def test_without_cuda_or_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="CUDA"):
        FlashInferAttention(HeadShape(4, 2, 8), torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Unsupported, match="not installed"):
        FlashInferAttention(HeadShape(4, 2, 8), torch.device("cpu"))
