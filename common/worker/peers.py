"""Reading blocks from other workers: the gRPC leases around the transport's reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from common.base.config import TimeoutsConfig
from common.base.errors import BlockCorrupt, InvalidRequest, Leg, PandoError
from common.base.logging import get_logger
from common.kv.block_cache import BlockCache
from common.kv.hashing import HASH_BYTES
from common.rpc.channel import ChannelPool
from common.rpc.convert import join_hashes
from common.rpc.errors import from_rpc_error
from common.transport.base import Endpoint, Extent, Read
from common.transport.region import Region
from common.transport.select import TransportSet
from common.worker.convert import endpoint_from_pb, extent_from_pb
from common.worker.job import Identity
from common.worker.metrics import WorkerMetrics
from pando.v1 import worker_pb2, worker_pb2_grpc

MAX_BLOCKS_PER_READ = 32


@dataclass(slots=True, frozen=True)
class Source:
    """A worker that may hold the first `num_blocks` blocks of a prompt (a hint)."""

    worker_id: str
    address: str
    num_blocks: int


class BlockReader:
    """Reads lent extents into this worker's blocks, and holds those while bytes may still arrive."""

    def __init__(
        self,
        *,
        cache: BlockCache,
        region: Region,
        transports: TransportSet,
        timeouts: TimeoutsConfig,
        metrics: WorkerMetrics,
    ) -> None:
        self._cache = cache
        self._region = region
        self._transports = transports
        self._timeouts = timeouts
        self._metrics = metrics

    async def read(self, endpoints: Sequence[Endpoint], extents: Sequence[Extent], blocks: Sequence[int]) -> int:
        """Read `extents` into `blocks`, verified; returns the bytes moved. All or an error (see Transport.read).

        The blocks are held here while a read runs: a request that ends meanwhile cannot free them under it.
        """
        assert len(extents) == len(blocks), f"{len(extents)} extents for {len(blocks)} blocks"
        reads = [self._into(extent, block) for extent, block in zip(extents, blocks, strict=True)]
        self._cache.hold(blocks)
        try:
            for start in range(0, len(reads), MAX_BLOCKS_PER_READ):
                await self._read_batch(endpoints, reads[start : start + MAX_BLOCKS_PER_READ])
        finally:
            self._cache.release(blocks)
        return sum(extent.length for extent in extents)

    def _into(self, extent: Extent, block: int) -> Read:
        offset, length = self._region.extent(block)
        if extent.length != length:
            raise InvalidRequest(f"an extent of {extent.length} bytes for a block of {length}", leg=Leg.TRANSFER)
        return Read(extent, self._region.data[offset : offset + length])

    async def _read_batch(self, endpoints: Sequence[Endpoint], reads: Sequence[Read]) -> None:
        try:
            await self._transports.read(endpoints, reads, self._timeouts.transfer_s)
        except BlockCorrupt:
            self._metrics.integrity_failures.inc()
            raise


@dataclass(slots=True, frozen=True)
class Lease:
    """Blocks that a peer lends: extents from the first wanted block on, without a gap."""

    endpoints: Sequence[Endpoint]
    extents: Sequence[Extent]


class PeerPrefixes:
    """Fetches the cached prefix of a prompt from a worker that holds more of it than this one does."""

    def __init__(
        self, channels: ChannelPool, reader: BlockReader, identity: Identity, timeouts: TimeoutsConfig, worker_id: str
    ) -> None:
        self._channels = channels
        self._reader = reader
        self._identity = identity
        self._timeouts = timeouts
        self._worker_id = worker_id

    def best(self, sources: Sequence[Source], num_blocks_here: int) -> Source | None:
        """The source that promises most beyond what is here; None when none does."""
        better = [s for s in sources if s.num_blocks > num_blocks_here and s.worker_id != self._worker_id]
        return max(better, key=lambda s: s.num_blocks, default=None)

    async def fetch(self, source: Source, hashes: Sequence[bytes], blocks: Sequence[int], first_block: int) -> int:
        """Read blocks `first_block ...` of the prefix `hashes` into `blocks[first_block:]`.

        Returns the number of blocks of the prefix that are here and verified afterwards: at least `first_block`.
        A source that fails costs a recompute, not the request: its failure is logged, not raised.
        """
        wanted = min(source.num_blocks, len(hashes), len(blocks))
        try:
            async with asyncio.timeout(self._timeouts.transfer_s):
                return await self._fetch(source, hashes[:wanted], blocks, first_block)
        except (PandoError, TimeoutError) as error:
            get_logger().warning("prefix not fetched from a peer", peer=source.worker_id, error=str(error))
            return first_block

    async def _fetch(self, source: Source, hashes: Sequence[bytes], blocks: Sequence[int], first_block: int) -> int:
        async with self._lease(source, hashes, first_block) as lease:
            num_lent = len(lease.extents[: len(hashes) - first_block])
            targets = blocks[first_block : first_block + num_lent]
            await self._reader.read(lease.endpoints, lease.extents[:num_lent], targets)
            return first_block + num_lent

    @asynccontextmanager
    async def _lease(self, source: Source, hashes: Sequence[bytes], first_block: int) -> AsyncIterator[Lease]:
        assert all(len(h) == HASH_BYTES for h in hashes), "a prefix hash of a wrong length"
        stub = worker_pb2_grpc.WorkerServiceStub(self._channels.get(source.address))
        call = stub.Lend()
        try:
            await call.write(
                worker_pb2.LendRequest(
                    identity=self._identity.to_pb(), prefix_hashes=join_hashes(hashes), first_block=first_block
                )
            )
            answer = await call.read()
            if not isinstance(answer, worker_pb2.LendResponse):
                raise InvalidRequest("the peer ended the loan without an answer", leg=Leg.TRANSFER)
            yield Lease([endpoint_from_pb(e) for e in answer.endpoints], [extent_from_pb(e) for e in answer.extents])
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.TRANSFER) from error
        finally:
            call.cancel()
