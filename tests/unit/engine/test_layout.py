"""The bytes of a block: where each element lies, what the digest distinguishes, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common.base.errors import InvalidRequest, Unsupported
from common.engine.layout import KVLayout, kv_dtype

LAYOUT = KVLayout(num_layers=3, block_size=4, num_kv_heads=2, head_dim=6, dtype=torch.float32)


def test_views_address_the_documented_place() -> None:
    layout = replace(LAYOUT, dtype=torch.bfloat16, block_size=3, head_dim=2, num_kv_heads=1)
    assert layout.block_bytes == 80, "36 elements are 72 bytes, padded to a multiple of 16"
    pool = bytearray(5 * layout.block_bytes)
    views = layout.layer_views(memoryview(pool), 5)
    views[2].v[4, 1, 0, 1] = 1.0
    element = 4 * layout.block_bytes // 2 + ((2 * 2 + 1) * 3 + 1) * 2 + 1
    assert pool[2 * element : 2 * element + 2] == b"\x80\x3f"
    assert sum(byte != 0 for byte in pool) == 2


def test_k_and_v_of_all_layers_cover_a_block_once() -> None:
    pool = bytearray(2 * LAYOUT.block_bytes)
    for number, layer in enumerate(LAYOUT.layer_views(memoryview(pool), 2)):
        layer.k[1] = 2 * number + 1
        layer.v[1] = 2 * number + 2
    block = torch.frombuffer(pool, dtype=torch.float32)[LAYOUT.block_bytes // 4 :].view(3, 2, 4, 2, 6)
    expected = torch.arange(1.0, 7.0).view(3, 2, 1, 1, 1).expand(3, 2, 4, 2, 6)
    assert torch.equal(block, expected)
    assert not any(pool[: LAYOUT.block_bytes])


def test_int8_scales_lie_behind_the_values() -> None:
    layout = KVLayout(num_layers=3, block_size=3, num_kv_heads=1, head_dim=2, dtype=torch.int8)
    assert layout.value_bytes == 48, "36 values, padded to a multiple of 16"
    assert layout.block_bytes == 96, "18 scales are 36 bytes, padded to a multiple of 16"
    pool = bytearray(5 * layout.block_bytes)
    views = layout.layer_views(memoryview(pool), 5)
    views[2].v[4, 1, 0, 1] = -3
    scales = views[2].scales
    assert scales is not None
    scales.v[4, 1, 0] = 1.0
    row = (2 * 2 + 1) * 3 + 1
    block = pool[4 * layout.block_bytes :]
    assert block[2 * row + 1] == 256 - 3
    assert block[48 + 2 * row : 48 + 2 * row + 2] == b"\x80\x3f"
    assert sum(byte != 0 for byte in pool) == 3


def test_int8_rows_of_all_layers_cover_a_block_once() -> None:
    layout = replace(LAYOUT, dtype=torch.int8)
    pool = bytearray(2 * layout.block_bytes)
    for number, layer in enumerate(layout.layer_views(memoryview(pool), 2)):
        assert layer.scales is not None
        layer.k[1], layer.v[1] = 2 * number + 1, 2 * number + 2
        layer.scales.k[1], layer.scales.v[1] = 2 * number + 1, 2 * number + 2
    values = torch.frombuffer(pool, dtype=torch.int8)[layout.block_bytes :][: layout.value_bytes].view(3, 2, 4, 2, 6)
    scales = torch.frombuffer(pool, dtype=torch.bfloat16)[(layout.block_bytes + layout.value_bytes) // 2 :]
    sides = torch.arange(1.0, 7.0).view(3, 2, 1, 1)
    assert torch.equal(values.float(), sides[..., None].expand(3, 2, 4, 2, 6))
    assert torch.equal(scales.view(3, 2, 4, 2).float(), sides.expand(3, 2, 4, 2))
    assert not any(pool[: layout.block_bytes])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_int8_blocks_take_little_more_than_half(head_dim: int) -> None:
    layout = KVLayout(num_layers=30, block_size=16, num_kv_heads=3, head_dim=head_dim, dtype=torch.bfloat16)
    assert replace(layout, dtype=torch.int8).block_bytes <= 0.54 * layout.block_bytes


def test_the_digest_tells_every_field_apart() -> None:
    others = [
        replace(LAYOUT, num_layers=4),
        replace(LAYOUT, block_size=8),
        replace(LAYOUT, num_kv_heads=3),
        replace(LAYOUT, head_dim=8),
        replace(LAYOUT, dtype=torch.float16),
        replace(LAYOUT, dtype=torch.bfloat16),
        replace(LAYOUT, dtype=torch.int8),
    ]
    assert len({layout.layout_digest() for layout in [LAYOUT, *others]}) == 8
    assert replace(LAYOUT).layout_digest() == LAYOUT.layout_digest()


@pytest.mark.parametrize("buffer", [memoryview(bytearray(10)), memoryview(bytes(4096))], ids=["small", "read-only"])
def test_a_bad_buffer_is_refused(buffer: memoryview) -> None:
    with pytest.raises(InvalidRequest, match="writable buffer"):
        LAYOUT.layer_views(buffer, 2)


def test_kv_dtype_names() -> None:
    names = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
    assert {name: kv_dtype(name) for name in names} == names
    for reserved in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        with pytest.raises(Unsupported, match="auto, fp32, fp16, bf16, int8"):
            kv_dtype(reserved)
    with pytest.raises(InvalidRequest, match="known: auto, fp32, fp16, bf16, int8"):
        kv_dtype("int4")
