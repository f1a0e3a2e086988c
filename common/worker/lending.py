"""Lending blocks to peers: what an extent promises, and the bound on how much is lent at a time.

A loan is a promise about bytes, so lent blocks are held until the loan ends, whatever becomes of the request that
computed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from common.base.errors import Overloaded
from common.transport.base import Extent
from common.transport.checksum import checksum
from common.transport.region import Region
from common.worker.core import WorkerCore


class Loans:
    """The blocks that one call lends: held, and counted against the lender's bound, until it ends."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self.blocks: list[int] = []

    async def add(self, blocks: Sequence[int]) -> list[Extent]:
        """Extents with checksums for held blocks whose bytes will not change while they are lent.

        Raises:
            Overloaded: the worker's bound on lent blocks is reached.
        """
        self._lender.hold(blocks)
        self.blocks.extend(blocks)
        return await self._lender.extents(blocks)


class Lender:
    """Makes extents of a worker's region. Checksums are computed in `executor`, off the loop, once per content."""

    def __init__(
        self,
        *,
        core: WorkerCore,
        region: Region,
        segment: int,
        incarnation: int,
        executor: Executor,
        max_lent_blocks: int,
    ) -> None:
        self._core = core
        self._region = region
        self._segment = segment
        self._incarnation = incarnation
        self._executor = executor
        self._max_lent_blocks = max_lent_blocks
        self._checksums: dict[int, tuple[int, int]] = {}
        self.num_lent = 0

    @asynccontextmanager
    async def loans(self) -> AsyncIterator[Loans]:
        """A set of loans that ends with the `async with`."""
        loans = Loans(self)
        try:
            yield loans
        finally:
            self.num_lent -= len(loans.blocks)
            self._core.release(loans.blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        """Hold blocks as lent; raises Overloaded past the bound."""
        if self.num_lent + len(blocks) > self._max_lent_blocks:
            raise Overloaded(f"{self.num_lent} blocks are lent already", reason="too_many_loans", retry_after_s=1.0)
        self.num_lent += len(blocks)
        self._core.hold(blocks)

    async def extents(self, blocks: Sequence[int]) -> list[Extent]:
        """Extents of `blocks`, in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: [self._extent(block) for block in blocks])

    def _extent(self, block: int) -> Extent:
        offset, length = self._region.extent(block)
        generation = self._region.generation(block)
        known = self._checksums.get(block)
        if known is None or known[0] != generation:
            known = (generation, checksum(self._region.data[offset : offset + length]))
            self._checksums[block] = known
        return Extent(self._incarnation, self._segment, offset, length, generation, known[1])
