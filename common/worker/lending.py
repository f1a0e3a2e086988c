"""Lending blocks of L1 and L2 to peers: what an extent promises, and the bound on how much is lent at a time.

A loan is a promise about bytes, so lent blocks are held until the loan ends, whatever becomes of the request that
computed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace

from common.base.errors import Overloaded
from common.cache.tiers import Tier
from common.transport.base import Extent
from common.transport.checksum import checksum
from common.worker.core import WorkerCore
from common.worker.trust import BlockTrust


class Loans:
    """The blocks that one call lends: held, and counted against the lender's bound, until it ends."""

    def __init__(self, lender: Lender, tagged: bool) -> None:
        self._lender = lender
        self._tagged = tagged
        self.blocks: list[tuple[Tier, Sequence[int]]] = []

    async def add(self, tier: Tier, blocks: Sequence[int], names: Sequence[bytes]) -> list[Extent]:
        """Extents with checksums for held blocks of a tier whose bytes will not change while they are lent.

        `names`, one per block, go into the tags of blocks that leave the host.

        Raises:
            Overloaded: the worker's bound on lent blocks is reached.
        """
        self._lender.hold(tier, blocks)
        self.blocks.append((tier, blocks))
        return await self._lender.extents(tier, blocks, names if self._tagged else None)


class Lender:
    """Makes extents of a worker's regions. Checksums are computed in `executor`, off the loop, once per content.

    Args:
        core: of this worker.
        segments: under which id the region of each tier is registered.
        incarnation: of this worker.
        trust: says which blocks are tagged.
        executor: computes checksums and tags.
        max_lent_blocks: the bound.
    """

    def __init__(
        self,
        *,
        core: WorkerCore,
        segments: Mapping[int, int],
        incarnation: int,
        trust: BlockTrust,
        executor: Executor,
        max_lent_blocks: int,
    ) -> None:
        self._core = core
        self._segments = segments
        self._incarnation = incarnation
        self._trust = trust
        self._executor = executor
        self._max_lent_blocks = max_lent_blocks
        self._checksums: dict[tuple[int, int], tuple[int, int]] = {}
        self.num_lent = 0

    @asynccontextmanager
    async def loans(self, reader_host_id: str) -> AsyncIterator[Loans]:
        """A set of loans to a reader on some host, that ends with the `async with`."""
        loans = Loans(self, self._trust.covers(reader_host_id))
        try:
            yield loans
        finally:
            for tier, blocks in loans.blocks:
                self.num_lent -= len(blocks)
                tier.cache.release(blocks)
            self._core.wake()

    def hold(self, tier: Tier, blocks: Sequence[int]) -> None:
        """Hold blocks as lent; raises Overloaded past the bound."""
        if self.num_lent + len(blocks) > self._max_lent_blocks:
            raise Overloaded(f"{self.num_lent} blocks are lent already", reason="too_many_loans", retry_after_s=1.0)
        self.num_lent += len(blocks)
        tier.cache.hold(blocks)

    async def extents(self, tier: Tier, blocks: Sequence[int], names: Sequence[bytes] | None) -> list[Extent]:
        """Extents of `blocks`, in order; with tags where names are given."""

        def make() -> list[Extent]:
            extents = [self._extent(tier, block) for block in blocks]
            if names is None:
                return extents
            return [
                replace(extent, tag=self._trust.tag(name, tier.view(block)))
                for extent, name, block in zip(extents, names, blocks, strict=True)
            ]

        return await asyncio.get_running_loop().run_in_executor(self._executor, make)

    def _extent(self, tier: Tier, block: int) -> Extent:
        offset, length = tier.region.extent(block)
        generation = tier.region.generation(block)
        known = self._checksums.get((tier.number, block))
        if known is None or known[0] != generation:
            known = (generation, checksum(tier.view(block)))
            self._checksums[tier.number, block] = known
        segment = self._segments[tier.number]
        return Extent(self._incarnation, segment, offset, length, generation, known[1])
