"""The decode side of a handoff: open the stream, read blocks as they are announced, take the first token.

Blocks are read in order by one task while prefill computes the next chunk; what landed is indexed at once, so that a
handoff that breaks leaves its blocks as cached prefix for the next attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from common.base.errors import HandoffAborted, LayoutMismatch, Leg
from common.rpc.channel import ChannelPool
from common.rpc.errors import calling
from common.sched.request import Request
from common.transport.base import Endpoint
from common.worker.convert import endpoint_from_pb, extent_from_pb
from common.worker.job import Identity
from common.worker.peers import BlockReader, Loan
from pando.v1 import worker_pb2, worker_pb2_grpc

HandoffCall: TypeAlias = "grpc.aio.StreamStreamCall[worker_pb2.HandoffRequest, worker_pb2.HandoffResponse]"


@dataclass(slots=True)
class Handoff:
    """One handoff as decode sees it.

    Attributes:
        request: reserved; its block table is the target.
        num_held: leading blocks of the table that were here before.
        timeout_s: of the whole call; None: it has no limit of its own.
        num_landed: leading blocks of the table that hold verified KV.
        num_announced: leading blocks that landed or may be read.
        transfer_bytes: bytes read so far.
        worker_id: of the prefill worker, once it accepted.
        first: its last message, once it came.
        endpoints: where to read what it lends.
        announced: loans to read, in order; None ends them. Bounded by the block table.
    """

    request: Request
    num_held: int
    timeout_s: float | None = None
    num_landed: int = field(init=False)
    num_announced: int = field(init=False)
    transfer_bytes: int = 0
    worker_id: str = ""
    first: worker_pb2.FirstToken | None = None
    endpoints: Sequence[Endpoint] = ()
    announced: asyncio.Queue[Loan | None] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.hold(self.num_held)

    def hold(self, num_blocks: int) -> None:
        """Note, before the handoff begins, how many leading blocks are here."""
        self.num_held = self.num_landed = self.num_announced = num_blocks


class HandoffReceiver:
    """Runs handoffs from prefill workers into this worker's blocks."""

    def __init__(self, channels: ChannelPool, reader: BlockReader, identity: Identity) -> None:
        self._channels = channels
        self._reader = reader
        self.identity = identity
        self.host_id = reader.trust.host_id

    async def receive(
        self,
        address: str,
        start: worker_pb2.HandoffStart,
        handoff: Handoff,
        on_landed: Callable[[int], None],
        on_first_token: Callable[[worker_pb2.FirstToken], bool],
    ) -> None:
        """Run a handoff to its end; returns when all announced blocks have landed.

        Args:
            address: of the prefill worker.
            start: first message.
            handoff: state, filled in as it goes.
            on_landed: called with the number of leading blocks that are here and verified.
            on_first_token: called when the last message came, usually before the last blocks landed; False means that
                the blocks are not needed.

        Raises:
            PandoError: with leg prefill or transfer. `handoff.first` tells whether the first token is known.
        """
        call = self._channels.stub(worker_pb2_grpc.PrefillServiceStub, address).Handoff(timeout=handoff.timeout_s)
        reading = asyncio.create_task(self._read_blocks(handoff, on_landed))
        try:
            with calling(Leg.PREFILL, "the prefill worker cut the handoff off"):
                await call.write(worker_pb2.HandoffRequest(start=start))
                wanted = await self._listen(call, handoff, on_first_token, reading)
                if wanted:
                    handoff.announced.put_nowait(None)
                    await reading
                await call.done_writing()
        finally:
            call.cancel()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _listen(
        self,
        call: HandoffCall,
        handoff: Handoff,
        on_first_token: Callable[[worker_pb2.FirstToken], bool],
        reading: asyncio.Task[None],
    ) -> bool:
        """Follow the stream up to the first token; returns whether the blocks are wanted."""
        while True:
            message = await _next(call, reading)
            kind = message.WhichOneof("message")
            if kind == "accepted":
                self._accept(message.accepted, handoff)
            elif kind == "blocks":
                self._announce(message.blocks, handoff)
            elif kind == "first_token":
                handoff.first = message.first_token
                return on_first_token(message.first_token)

    def _accept(self, accepted: worker_pb2.HandoffAccepted, handoff: Handoff) -> None:
        try:
            self.identity.check(accepted.identity)
        except LayoutMismatch as error:
            error.leg = Leg.PREFILL
            raise
        handoff.worker_id = accepted.worker_id
        handoff.endpoints = [endpoint_from_pb(endpoint) for endpoint in accepted.endpoints]

    def _announce(self, blocks: worker_pb2.BlocksReady, handoff: Handoff) -> None:
        expected, room = handoff.num_announced, len(handoff.request.block_table)
        if blocks.first_block != expected or expected + len(blocks.extents) > room:
            raise HandoffAborted(
                f"blocks {blocks.first_block}+{len(blocks.extents)} announced, expected {expected} of {room}",
                reason="bad_handoff",
                leg=Leg.PREFILL,
            )
        handoff.num_announced += len(blocks.extents)
        handoff.announced.put_nowait(Loan(handoff.endpoints, [extent_from_pb(extent) for extent in blocks.extents]))

    async def _read_blocks(self, handoff: Handoff, on_landed: Callable[[int], None]) -> None:
        def note(num_blocks: int) -> None:
            handoff.transfer_bytes += (num_blocks - handoff.num_landed) * self.identity.block_bytes
            handoff.num_landed = num_blocks
            on_landed(num_blocks)

        while (loan := await handoff.announced.get()) is not None:
            await self._reader.read(handoff.request, handoff.num_landed, loan, note)


async def _next(call: HandoffCall, reading: asyncio.Task[None]) -> worker_pb2.HandoffResponse:
    """The stream's next message; raises what ended the stream, or the error of the reading task if that comes first."""
    message = asyncio.ensure_future(call.read())
    try:
        await asyncio.wait((message, reading), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
        answer = await message
    finally:
        message.cancel()
    if not isinstance(answer, worker_pb2.HandoffResponse):
        raise HandoffAborted("prefill ended the handoff before the first token", leg=Leg.PREFILL)
    return answer
