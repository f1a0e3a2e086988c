"""Calls to workers: build the stub, bound the time, turn failures into our errors. The router's only gRPC client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeAlias

import grpc

from common.base.config import TimeoutsConfig
from common.base.errors import Leg, StaleIncarnation
from common.rpc.channel import ChannelPool
from common.rpc.errors import calling
from common.rpc.operator import AUTHORIZATION
from pando.v1 import worker_pb2, worker_pb2_grpc
from services.router.convert import info_from_pb, stats_from_pb, update_from_pb
from services.router.index_update import Update
from services.router.member import Info, Stats
from services.router.running import Ticket

Answers: TypeAlias = grpc.aio.UnaryStreamCall[
    worker_pb2.DecodeServiceGenerateRequest, worker_pb2.DecodeServiceGenerateResponse
]

_EJECTED = "the worker was ejected"
"""Then its channel is closed, under the calls that are on it."""


class WorkerRpc:
    """All calls that the router makes to workers. Lives on one event loop."""

    def __init__(self, timeouts: TimeoutsConfig) -> None:
        self._channels = ChannelPool(timeouts)
        self._handshake_s = timeouts.connect_s + timeouts.ping_s
        self._ping_s = timeouts.ping_s

    async def get_info(self, address: str) -> Info:
        """Ask a worker who it is. Raises PandoError."""
        stub = self._channels.stub(worker_pb2_grpc.WorkerServiceStub, address)
        with calling(Leg.NONE, _EJECTED):
            return info_from_pb(await stub.GetInfo(worker_pb2.GetInfoRequest(), timeout=self._handshake_s))

    async def get_stats(self, address: str) -> Stats:
        """Ask a worker for its load: a ping. Raises PandoError."""
        stub = self._channels.stub(worker_pb2_grpc.WorkerServiceStub, address)
        with calling(Leg.NONE, _EJECTED):
            return stats_from_pb(await stub.GetStats(worker_pb2.GetStatsRequest(), timeout=self._ping_s))

    async def watch(self, address: str, incarnation: int) -> AsyncGenerator[Update, None]:
        """Follow the index of one life of a worker until the stream breaks.

        Raises:
            StaleIncarnation: another life answers.
            PandoError: it broke.
        """
        stub = self._channels.stub(worker_pb2_grpc.WorkerServiceStub, address)
        call = stub.Watch(worker_pb2.WatchRequest())
        try:
            with calling(Leg.NONE, _EJECTED):
                async for message in call:
                    if message.incarnation != incarnation:
                        raise StaleIncarnation("another life answers at the worker's address")
                    yield update_from_pb(message)
        finally:
            call.cancel()

    def generate(
        self, address: str, request: worker_pb2.DecodeServiceGenerateRequest, timeout_s: float, ticket: Ticket
    ) -> Attempt:
        """Run one attempt at one choice; the caller enters the result at once."""
        stub = self._channels.stub(worker_pb2_grpc.DecodeServiceStub, address)
        return Attempt(stub.Generate(request, timeout=timeout_s), ticket)

    async def set_role(self, address: str, role: str, token: str) -> None:
        """Give a worker one role and no other, as its operator would. Raises PandoError."""
        # Only a router that was told to act holds the operators' service.
        from pando.v1 import admin_pb2, admin_pb2_grpc  # noqa: PLC0415

        stub = self._channels.stub(admin_pb2_grpc.AdminServiceStub, address)
        metadata = ((AUTHORIZATION, f"Bearer {token}"),) if token else ()
        with calling(Leg.NONE, _EJECTED):
            await stub.SetRole(admin_pb2.SetRoleRequest(roles=[role]), timeout=self._handshake_s, metadata=metadata)

    def forget(self, address: str) -> Coroutine[Any, Any, None]:
        """Drop the channel to a worker that is gone; awaiting the result closes it, and calls that hang on it fail."""
        return self._channels.forget(address)

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()


class Attempt(calling):
    """A call for one choice: entering gives its answers, to be read inside the block. Leaving the block, or aborting
    the ticket, cancels it on the worker. What it raises leaves as a PandoError, whose leg is decode where the worker
    named none.
    """

    __slots__ = ("_call", "_ticket")

    def __init__(self, call: Answers, ticket: Ticket) -> None:
        super().__init__(Leg.DECODE, _EJECTED, ticket.check)
        self._call = call
        self._ticket = ticket

    def __enter__(self) -> Answers:
        self._ticket.on_abort(self._call.cancel)
        return self._call

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ticket.forget(self._call.cancel)
        self._call.cancel()
        super().__exit__(kind, error, trace)
