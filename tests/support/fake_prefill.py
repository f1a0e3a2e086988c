"""A prefill worker that says what a test tells it to, in the process of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pando.v1 import types_pb2, worker_pb2, worker_pb2_grpc

Message = worker_pb2.HandoffResponse
NOWHERE = types_pb2.TransportEndpoint(driver="shm", host_id="another host", incarnation=1, descriptor=b"?")


class FakePrefill(worker_pb2_grpc.PrefillServiceServicer):
    """Answers every handoff with its script.

    Attributes:
        script: messages to send, in order.
        hang: keep the stream open after the script instead of ending it.
        accept: send a proper `accepted` first, with the identity that came.
        starts: what was asked for.
        left_s: what was left of each caller's time, None where it set no limit.
        ended: set when a hanging stream was left by the caller.
    """

    def __init__(self) -> None:
        self.script: Sequence[Message] = ()
        self.hang = False
        self.accept = True
        self.starts: list[worker_pb2.HandoffStart] = []
        self.left_s: list[float | None] = []
        self.sent = asyncio.Event()
        self.ended = asyncio.Event()

    async def Handoff(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Message]:
        """Play the script."""
        start = (await anext(request_iterator)).start
        self.starts.append(start)
        self.left_s.append(context.time_remaining())
        try:
            if self.accept:
                accepted = worker_pb2.HandoffAccepted(worker_id="fake", identity=start.identity, endpoints=[NOWHERE])
                yield Message(accepted=accepted)
            for message in self.script:
                yield message
            self.sent.set()
            if self.hang:
                async for _ in request_iterator:
                    pass
        finally:
            self.ended.set()


def blocks(first: int, count: int, length: int) -> Message:
    """Blocks at a peer that cannot be read."""
    extents = [types_pb2.Extent(incarnation=1, segment=1, offset=i * length, length=length) for i in range(count)]
    return Message(blocks=worker_pb2.BlocksReady(first_block=first, extents=extents))


def first_token(token_id: int, **fields: Any) -> Message:
    """The last message of a handoff."""
    return Message(first_token=worker_pb2.FirstToken(token_id=token_id, **fields))


@asynccontextmanager
async def fake_prefill() -> AsyncIterator[tuple[FakePrefill, str]]:
    """A served `FakePrefill` and its address."""
    server, fake = grpc.aio.server(), FakePrefill()
    worker_pb2_grpc.add_PrefillServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield fake, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
