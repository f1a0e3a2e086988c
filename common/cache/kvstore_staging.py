"""What a client offers to a store when it puts: extents of memory that nodes may read.

Two ways. A worker's blocks lie in regions that it lends anyway: they are offered in place. Anything else is copied into
a staging arena with transports of its own, which are made when they are first needed.

A staged copy's pages are given back when the put is over, however it ended; their generation is bumped then, so a node
that still reads learns that what it gets is no longer what was offered. Copies and checksums run in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from common.base.ids import new_incarnation
from common.cache.kvstore_arena import Arena, Run
from common.cache.l3 import SealedBlock
from common.transport.base import Endpoint, Extent
from common.transport.checksum import checksum
from common.transport.copying import address_of
from common.transport.region import Region
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers

_PAGE_BYTES = 64 * 1024
_WAVE_BYTES = 32 * 1024 * 1024
_STAGED_WAVE_BYTES = 8 * 1024 * 1024
_NUM_THREADS = 2


@dataclass(slots=True, frozen=True)
class Offered:
    """Blocks that nodes may read until `staged` is given back.

    Attributes:
        extents: one a block, with checksums.
        endpoints, incarnation: of whoever lends them.
        staged: pages of the staging arena that hold them; empty when they are offered in place.
    """

    extents: Sequence[Extent]
    endpoints: Sequence[Endpoint]
    incarnation: int
    staged: Sequence[Run] = ()


@dataclass(slots=True, frozen=True)
class Wave:
    """Blocks that are offered together.

    Attributes:
        blocks: of one kind.
        places: extents that they are, one a block, with the checksums that are known; empty: they have to be staged.
    """

    blocks: list[SealedBlock] = field(default_factory=list)
    places: list[Extent] = field(default_factory=list)


class InPlace:
    """Offers blocks that lie in regions which this process lends already."""

    def __init__(self, transports: TransportSet, incarnation: int, regions: Sequence[tuple[Region, int]]) -> None:
        """`regions` are registered with `transports`, each under the segment that stands beside it."""
        self.transports = transports
        self.incarnation = incarnation
        self._regions = [(address_of(region.data), region, segment) for region, segment in regions]

    def find(self, block: SealedBlock) -> Extent | None:
        """The extent that a payload is, its checksum 0 if nobody has computed it; None when it is none."""
        payload, length = block.payload, block.payload.nbytes
        if payload.readonly:
            return None
        address = address_of(payload)
        for base, region, segment in self._regions:
            offset, size = address - base, region.extent_bytes
            if 0 <= offset < region.num_extents * size:
                index = offset // size
                if offset + length > (index + 1) * size:
                    return None
                return Extent(self.incarnation, segment, offset, length, region.generation(index), block.checksum or 0)
        return None


class Staging:
    """Offers blocks. Lives on one loop; `in_place` is tried first."""

    def __init__(self, capacity_bytes: int, drivers: Sequence[str], in_place: InPlace | None) -> None:
        self._capacity_bytes = capacity_bytes
        self._drivers = tuple(drivers)
        self._in_place = in_place
        self._incarnation = new_incarnation()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="pando-store-put")
        self._arena: Arena | None = None
        self._transports: TransportSet | None = None
        self._segment = 0
        self._opening = asyncio.Lock()
        self._freed = asyncio.Event()

    @property
    def staged_bytes(self) -> int:
        """Bytes of pages that are in use."""
        return self._arena.used_bytes if self._arena is not None else 0

    async def transports(self) -> TransportSet:
        """To read with: those of the process, or the staging's own.

        Raises:
            Unsupported: no driver runs here.
        """
        return self._in_place.transports if self._in_place is not None else (await self._open())[0]

    def split(self, blocks: Sequence[SealedBlock]) -> list[Wave]:
        """Waves of neighbours, each of one kind: all in place, or all to be staged, and those are smaller."""
        waves: list[Wave] = []
        num_bytes, last = 0, None
        for block in blocks:
            place = None if self._in_place is None else self._in_place.find(block)
            kind = place is not None
            if kind is not last or num_bytes >= (_WAVE_BYTES if kind else _STAGED_WAVE_BYTES):
                waves.append(Wave())
                num_bytes, last = 0, kind
            waves[-1].blocks.append(block)
            if place is not None:
                waves[-1].places.append(place)
            num_bytes += block.payload.nbytes
        return waves

    async def offer(self, wave: Wave, deadline_s: float) -> Offered | None:
        """Make a wave readable; None when there is no room for it in time, or never.

        Raises:
            Unsupported: no driver runs here.
        """
        if self._in_place is None or not wave.places:
            return await self._stage(wave.blocks, deadline_s)
        extents = wave.places
        if any(block.checksum is None for block in wave.blocks):
            sums = await self._in_thread(lambda: [checksum(block.payload) for block in wave.blocks])
            extents = [replace(place, checksum=one) for place, one in zip(wave.places, sums, strict=True)]
        return Offered(extents, self._in_place.transports.endpoints(), self._in_place.incarnation)

    def give_back(self, offered: Offered) -> None:
        """The put is over."""
        if self._arena is not None:
            for run in offered.staged:
                self._arena.free(run)
            self._freed.set()

    async def close(self) -> None:
        """Stop transports and threads; no put runs any more."""
        self._threads.shutdown()
        if self._transports is not None and self._arena is not None:
            await self._transports.close()
            self._arena.close()

    async def _stage(self, wave: Sequence[SealedBlock], deadline_s: float) -> Offered | None:
        transports, arena = await self._open()
        runs = await self._allocate(arena, [block.payload.nbytes for block in wave], deadline_s)
        if runs is None:
            return None
        try:
            sums = await self._in_thread(lambda: [_copy(b, arena.view(r)) for b, r in zip(wave, runs, strict=True)])
        except BaseException:
            self.give_back(Offered((), (), 0, runs))
            raise
        extents = [
            Extent(self._incarnation, self._segment, arena.offset(run), run.length, arena.generation(run), one)
            for run, one in zip(runs, sums, strict=True)
        ]
        return Offered(extents, transports.endpoints(), self._incarnation, runs)

    async def _allocate(self, arena: Arena, lengths: Sequence[int], deadline_s: float) -> list[Run] | None:
        """Pages for all lengths; waits for puts that end."""
        if sum(arena.pages_for(length) for length in lengths) > arena.num_pages:
            return None
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + deadline_s
        while True:
            runs: list[Run] = []
            for length in lengths:
                run = arena.allocate(length)
                if run is None:
                    break
                runs.append(run)
            else:
                return runs
            for run in runs:
                arena.free(run)
            self._freed.clear()
            try:
                await asyncio.wait_for(self._freed.wait(), max(0.0, ends_s - loop.time()))
            except TimeoutError:
                return None

    async def _open(self) -> tuple[TransportSet, Arena]:
        """The staging's own transports and arena, made at the first call."""
        async with self._opening:
            if self._transports is None or self._arena is None:
                drivers = make_drivers(TransportConfig(drivers=self._drivers), host_id(), self._incarnation)
                transports = TransportSet(drivers)
                await transports.start()
                self._arena = Arena(self._capacity_bytes, _PAGE_BYTES)
                self._segment = transports.register(self._arena.region)
                self._transports = transports
            return self._transports, self._arena

    async def _in_thread(self, work: Callable[[], list[int]]) -> list[int]:
        """Run it in a thread, and do not leave before the thread has, not even when cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({future})
            raise


def _copy(block: SealedBlock, page: memoryview) -> int:
    """Copy a payload outside the interpreter lock and return its checksum."""
    np.copyto(np.frombuffer(page, np.uint8), np.frombuffer(block.payload, np.uint8))
    return checksum(page) if block.checksum is None else block.checksum
