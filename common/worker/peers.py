"""Reading blocks from other workers: the gRPC leases around the transport's reads.

A read goes into the blocks that its request has *now*: they are looked up in its table right before they are held, so
that a request which ended meanwhile gets nothing and nobody else's block is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.base.config import TimeoutsConfig
from common.base.errors import (
    BlockCorrupt,
    Cancelled,
    HandoffAborted,
    InvalidRequest,
    LayoutMismatch,
    Leg,
    PandoError,
    PeerLost,
)
from common.base.failpoints import DISABLED, Failpoints, Kind, inflict
from common.base.logging import get_logger
from common.kv.hashing import HASH_BYTES
from common.rpc.channel import ChannelPool
from common.rpc.convert import join_hashes
from common.rpc.errors import calling
from common.sched.request import Request
from common.transport.base import Endpoint, Extent, Read
from common.transport.select import TransportSet
from common.worker.convert import endpoint_from_pb, extent_from_pb
from common.worker.core import WorkerCore
from common.worker.job import Identity
from common.worker.trust import BlockTrust
from pando.v1 import worker_pb2, worker_pb2_grpc

MAX_BLOCKS_PER_READ = 32
PEER_READ = "peer.read"


@dataclass(slots=True, frozen=True)
class Source:
    """A worker that may hold the first `num_blocks` blocks of a prompt (a hint)."""

    worker_id: str
    address: str
    num_blocks: int


@dataclass(slots=True, frozen=True)
class Loan:
    """What a peer lends: where to read, and extents without a gap."""

    endpoints: Sequence[Endpoint]
    extents: Sequence[Extent]


class BlockReader:
    """Reads lent extents into blocks of requests, and holds those while bytes may still arrive."""

    def __init__(
        self,
        *,
        core: WorkerCore,
        transports: TransportSet,
        timeouts: TimeoutsConfig,
        trust: BlockTrust,
        failpoints: Failpoints = DISABLED,
    ) -> None:
        self.core = core
        self.trust = trust
        self._failpoints = failpoints
        failpoints.register(PEER_READ, Kind.CALL, "a batch of blocks is read from a peer")
        self._transports = transports
        self._timeouts = timeouts

    async def read(self, request: Request, first_block: int, loan: Loan, on_landed: Callable[[int], None]) -> None:
        """Read a loan into blocks `first_block ...` of a request, in batches, each verified as a whole.

        Args:
            request: reserved.
            first_block: index in its block table.
            loan: what to read.
            on_landed: called after each batch with the number of leading blocks of the table that are here.

        Raises:
            Cancelled: the request ended meanwhile.
            PandoError: see `Transport.read`, with leg transfer; batches that landed before stay landed.
        """
        for start in range(0, len(loan.extents), MAX_BLOCKS_PER_READ):
            batch = loan.extents[start : start + MAX_BLOCKS_PER_READ]
            first = first_block + start
            blocks = request.block_table[first : first + len(batch)]
            if len(blocks) < len(batch):
                raise Cancelled("the request ended while its blocks arrived", leg=Leg.TRANSFER)
            names = [request.block_name(index, request.num_tokens) for index in range(first, first + len(batch))]
            await self._read_batch(loan.endpoints, batch, blocks, names)
            on_landed(first + len(batch))

    async def _read_batch(
        self, endpoints: Sequence[Endpoint], extents: Sequence[Extent], blocks: list[int], names: Sequence[bytes]
    ) -> None:
        reads = [self._into(extent, block) for extent, block in zip(extents, blocks, strict=True)]
        self.core.hold(blocks)
        try:
            await inflict(self._failpoints.hit(PEER_READ), lambda: PeerLost(f"failpoint {PEER_READ}"))
            await self._transports.read(endpoints, reads, self._timeouts.transfer_s)
            if any(self.trust.covers(endpoint.host_id) for endpoint in endpoints):
                await asyncio.to_thread(self.trust.check, extents, names, [read.target for read in reads])
        except InvalidRequest as error:  # what the peer announced makes no sense; that is not the user's fault
            raise HandoffAborted(error.message, reason=error.reason, leg=Leg.TRANSFER) from error
        except PandoError as error:
            error.leg = error.leg or Leg.TRANSFER
            if isinstance(error, BlockCorrupt):
                self.core.metrics.integrity_failures.inc()
            raise
        finally:
            self.core.release(blocks)

    def _into(self, extent: Extent, block: int) -> Read:
        target = self.core.tiers.l1.view(block)
        if extent.length != len(target):
            raise LayoutMismatch(f"an extent of {extent.length} bytes for a block of {len(target)}", leg=Leg.TRANSFER)
        return Read(extent, target)


class PeerPrefixes:
    """Fetches the cached prefix of a prompt from a worker that holds more of it than this one does."""

    def __init__(
        self, channels: ChannelPool, reader: BlockReader, identity: Identity, timeouts: TimeoutsConfig, worker_id: str
    ) -> None:
        self._channels = channels
        self._core = reader.core
        self._reader = reader
        self._identity = identity
        self._timeouts = timeouts
        self._worker_id = worker_id

    def best(self, sources: Sequence[Source], num_blocks_here: int) -> Source | None:
        """The source that promises most beyond what is here; None when none does."""
        better = [s for s in sources if s.num_blocks > num_blocks_here and s.worker_id != self._worker_id]
        return max(better, key=lambda s: s.num_blocks, default=None)

    async def bring(self, source: Source, request: Request) -> int:
        """Bring what L2 and then a source have of a reserved request's path, and let it run; the rest is computed.

        Returns the number of blocks that came from the source. One that fails costs a recompute, not the request: its
        failure is logged, not raised.
        """
        core = self._core
        num_here = await core.load(request)
        num_landed = await self._fetch(source, request, num_here) if source.num_blocks > num_here else num_here
        core.fetched(request, num_here, num_landed)
        core.resume(request, None)
        return num_landed - num_here

    async def _fetch(self, source: Source, request: Request, num_here: int) -> int:
        """Read the blocks of a request's known tokens that a source has beyond the first `num_here`.

        Returns the number of leading blocks that are here and verified afterwards.
        """
        num_landed = num_here

        def note(num_blocks: int) -> None:
            nonlocal num_landed
            num_landed = num_blocks
            self._core.landed(request, num_blocks)

        hashes = request.reusable_hashes()[: source.num_blocks]
        try:
            async with asyncio.timeout(self._timeouts.transfer_s), self._borrow(source, hashes, num_here) as loan:
                await self._reader.read(request, num_here, loan, note)
        except (PandoError, TimeoutError) as error:
            get_logger().warning("prefix not fetched from a peer", peer=source.worker_id, error=str(error))
        return num_landed

    @asynccontextmanager
    async def _borrow(self, source: Source, hashes: Sequence[bytes], first_block: int) -> AsyncIterator[Loan]:
        """Blocks `first_block ...` of the path `hashes`, as far as the source has them, lent inside the `with`."""
        assert all(len(h) == HASH_BYTES for h in hashes), "a prefix hash of a wrong length"
        stub = self._channels.stub(worker_pb2_grpc.WorkerServiceStub, source.address)
        call = stub.Lend(timeout=self._timeouts.transfer_s)
        try:
            with calling(Leg.TRANSFER, "the peer cut the loan off"):
                await call.write(
                    worker_pb2.LendRequest(
                        identity=self._identity.to_pb(),
                        prefix_hashes=join_hashes(hashes),
                        first_block=first_block,
                        host_id=self._reader.trust.host_id,
                    )
                )
                answer = await call.read()
                if not isinstance(answer, worker_pb2.LendResponse):
                    raise HandoffAborted("the peer ended the loan without an answer", leg=Leg.TRANSFER)
                extents = [extent_from_pb(e) for e in answer.extents[: max(0, len(hashes) - first_block)]]
                yield Loan([endpoint_from_pb(e) for e in answer.endpoints], extents)
        finally:
            call.cancel()
