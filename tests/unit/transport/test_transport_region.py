"""A region is lazy, sealed against foreign writers, safe to close, and a view trusts nothing but its size."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
import psutil
import pytest

from common.base.errors import InvalidRequest
from common.transport.checksum import checksum
from common.transport.region import Geometry, Region, RegionView


def test_extents_lie_side_by_side_on_a_page_boundary() -> None:
    with Region.create(5, 1000) as region:
        assert [region.extent(index) for index in range(5)] == [(1000 * index, 1000) for index in range(5)]
        assert len(region.data) == 5000
        assert region.geometry.data_offset % mmap.PAGESIZE == 0
        assert not any(region.data)


def test_many_generations_do_not_reach_into_the_data() -> None:
    with Region.create(10_000, 16) as region:
        for index in range(10_000):
            region.bump_generation(index)
        assert not any(region.data)
        assert {region.generation(index) for index in range(10_000)} == {1}


def test_memory_is_touched_only_when_used() -> None:
    before = psutil.Process().memory_info().rss
    with Region.create(10_000, 1 << 20) as region:
        region.data[5 << 30] = 1
        assert psutil.Process().memory_info().rss - before < 16 << 20


def test_a_view_sees_data_and_generations_as_they_change() -> None:
    with Region.create(3, 4096) as region:
        region.stamp(42)
        view = RegionView(region.fd)
        assert view.incarnation == 42
        assert view.geometry == region.geometry
        region.data[4096:4100] = b"abcd"
        assert bytes(view.data[4096:4100]) == b"abcd"
        assert view.generation(1) == 0
        assert region.bump_generation(1) == 1
        assert [view.generation(index) for index in range(3)] == [0, 1, 0]
        assert view.data.readonly


def test_nobody_else_can_map_it_for_writing_or_resize_it() -> None:
    with Region.create(1, 4096) as region:
        region.data[0] = 7  # the owner's own mapping, made before the seal, still writes
        with pytest.raises(PermissionError):
            mmap.mmap(region.fd, mmap.PAGESIZE)
        with pytest.raises(PermissionError):
            os.ftruncate(region.fd, mmap.PAGESIZE)
        with pytest.raises(PermissionError):
            os.pwrite(region.fd, b"x", mmap.PAGESIZE)


def test_close_is_repeatable_and_leaves_wrapped_memory_alive() -> None:
    region = Region.create(2, 4096)
    wrapped = np.frombuffer(region.data, np.uint8)
    wrapped[5] = 9
    region.close()
    region.close()
    assert wrapped[5] == 9


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 0), (-1, 5), (0, 101), (50, 60), (300, 1), (299, 2), (2**63, 1), (99, 2)]
)
def test_spans_outside_one_extent_are_refused(offset: int, length: int) -> None:
    with pytest.raises(InvalidRequest):
        Geometry(3, 100).extent_of(offset, length)


def test_spans_within_one_extent_are_found() -> None:
    geometry = Geometry(3, 100)
    assert [geometry.extent_of(*span) for span in [(0, 100), (100, 1), (250, 50), (299, 1)]] == [0, 1, 2, 2]


@pytest.mark.parametrize("span", [(0, 1), (0, 300), (100, 101), (100, 200), (200, 100)])
def test_where_spans_may_cross_the_first_extent_stands_for_them(span: tuple[int, int]) -> None:
    assert Geometry(3, 100, spanning=True).extent_of(*span) == span[0] // 100


@pytest.mark.parametrize("span", [(0, 0), (-100, 5), (0, 301), (100, 201), (1, 5), (150, 10), (199, 1), (300, 1)])
def test_spans_that_begin_within_an_extent_or_leave_the_region_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest):
        Geometry(3, 100, spanning=True).extent_of(*span)


@pytest.mark.parametrize("spanning", [False, True])
def test_readers_learn_from_the_region_whether_spans_may_cross(spanning: bool) -> None:
    with Region.create(3, 4096, spanning=spanning) as region:
        assert RegionView(region.fd).geometry == region.geometry == Geometry(3, 4096, spanning)


def _memfd(content: bytes, seal: bool) -> int:
    fd = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


@pytest.mark.parametrize(
    ("content", "seal"), [(b"", True), (bytes(8192), True), (b"PANDOREG" + b"\xff" * 8184, True), (bytes(8192), False)]
)
def test_a_view_refuses_what_is_no_region(content: bytes, seal: bool) -> None:
    fd = _memfd(content, seal)
    try:
        with pytest.raises(InvalidRequest):
            RegionView(fd)
    finally:
        os.close(fd)


def test_a_view_refuses_pipes_and_files() -> None:
    reader, writer = os.pipe()
    with open(__file__, "rb") as file:
        for fd in (reader, writer, file.fileno()):
            with pytest.raises(InvalidRequest):
                RegionView(fd)
    os.close(reader)
    os.close(writer)


def test_checksum_is_xxh3_64_and_sees_every_bit() -> None:
    assert checksum(b"") == 0x2D06800538D394C2  # published test vector of XXH3-64, seed 0
    data = bytearray(range(256)) * 16
    seen = {checksum(data)}
    for bit in range(0, len(data) * 8, 37):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(checksum(memoryview(data)))
        data[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 1 + len(range(0, len(data) * 8, 37))
