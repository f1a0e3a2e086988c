"""What the shm driver keeps of peers: memory of the living only."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from common.transport.base import Extent, Read
from common.transport.checksum import checksum
from common.transport.region import Region
from common.transport.shm import ShmTransport

HOST = "host"
EXTENT_BYTES = 4096


def num_mapped_regions() -> int:
    return Path("/proc/self/maps").read_text().count("pando-region")


@asynccontextmanager
async def owner(incarnation: int) -> AsyncIterator[tuple[ShmTransport, Region]]:
    with Region.create(2, EXTENT_BYTES) as region:
        region.stamp(incarnation)
        region.data[:] = bytes([incarnation]) * len(region.data)
        transport = ShmTransport(HOST, incarnation)
        assert transport.register(region) == 1
        await transport.start()
        try:
            yield transport, region
        finally:
            await transport.close()


async def read_one(reader: ShmTransport, lender: ShmTransport, incarnation: int, region: Region) -> bytes:
    offset, length = region.extent(1)
    promised = checksum(region.data[offset : offset + length])
    target = bytearray(length)
    extent = Extent(incarnation, 1, offset, length, region.generation(1), promised)
    await reader.read(lender.endpoint(), [Read(extent, memoryview(target))], 5.0)
    return bytes(target)


async def test_a_new_peer_makes_the_reader_let_go_of_the_memory_of_dead_ones() -> None:
    gc.collect()  # what other tests left must not go in the midst of this one
    before = num_mapped_regions()
    reader = ShmTransport(HOST, 99)
    async with owner(1) as (living, living_region):
        await read_one(reader, living, 1, living_region)
        for incarnation in (2, 3, 4):
            async with owner(incarnation) as (dying, region):
                assert await read_one(reader, dying, incarnation, region) == bytes([incarnation]) * EXTENT_BYTES
        assert num_mapped_regions() == before + 3, "one owned here, one of a living peer, one of the last that died"
        assert await read_one(reader, living, 1, living_region) == bytes([1]) * EXTENT_BYTES
    await reader.close()
    assert num_mapped_regions() == before
