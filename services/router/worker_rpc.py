"""Calls to workers: build the stub, bound the time, turn failures into our errors. The router's only gRPC client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import grpc

from common.base.config import TimeoutsConfig
from common.base.errors import Leg, PeerLost
from common.rpc.channel import ChannelPool
from common.rpc.errors import from_rpc_error
from pando.v1 import inference_pb2, worker_pb2, worker_pb2_grpc
from services.router.convert import info_from_pb, stats_from_pb, update_from_pb
from services.router.member import Info, Stats
from services.router.prefix_view import Update
from services.router.running import Ticket


class WorkerRpc:
    """All calls that the router makes to workers. Lives on one event loop."""

    def __init__(self, timeouts: TimeoutsConfig) -> None:
        self._channels = ChannelPool(timeouts)
        self._handshake_s = timeouts.connect_s + timeouts.ping_s
        self._ping_s = timeouts.ping_s

    async def get_info(self, address: str) -> Info:
        """Ask a worker who it is. Raises PandoError."""
        stub = worker_pb2_grpc.WorkerServiceStub(self._channels.get(address))
        try:
            return info_from_pb(await stub.GetInfo(worker_pb2.GetInfoRequest(), timeout=self._handshake_s))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.NONE) from error

    async def get_stats(self, address: str) -> Stats:
        """Ask a worker for its load: a ping. Raises PandoError."""
        stub = worker_pb2_grpc.WorkerServiceStub(self._channels.get(address))
        try:
            return stats_from_pb(await stub.GetStats(worker_pb2.GetStatsRequest(), timeout=self._ping_s))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.NONE) from error

    async def watch(self, address: str, incarnation: int) -> AsyncGenerator[Update, None]:
        """Follow the index of one life of a worker until the stream breaks.

        Raises:
            PandoError: it broke, or another life answers.
        """
        stub = worker_pb2_grpc.WorkerServiceStub(self._channels.get(address))
        call = stub.Watch(worker_pb2.WatchRequest())
        try:
            async for message in call:
                if message.incarnation != incarnation:
                    raise PeerLost("another life answers at the worker's address")
                yield update_from_pb(message)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.NONE) from error
        finally:
            call.cancel()

    async def generate(
        self, address: str, request: worker_pb2.DecodeServiceGenerateRequest, timeout_s: float, ticket: Ticket
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Run one attempt at one choice; leaving the iterator, or aborting the ticket, cancels it on the worker.

        Raises:
            PandoError: the attempt failed; its leg is decode where the worker named none.
        """
        stub = worker_pb2_grpc.DecodeServiceStub(self._channels.get(address))
        call = stub.Generate(request, timeout=timeout_s)
        ticket.on_abort(call.cancel)
        try:
            async for response in call:
                yield response.frame
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.DECODE) from error
        except asyncio.CancelledError:
            raise_if_call_was_cut(ticket)
            raise
        finally:
            ticket.forget(call.cancel)
            call.cancel()

    def forget(self, address: str) -> Coroutine[Any, Any, None]:
        """Drop the channel to a worker that is gone; awaiting the result closes it, and calls that hang on it fail."""
        return self._channels.forget(address)

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()


def raise_if_call_was_cut(ticket: Ticket) -> None:
    """Tell apart who cancelled a call: an abort, or the closing of its channel; returns if it was our own task."""
    task: asyncio.Task[Any] | None = asyncio.current_task()
    if task is not None and task.cancelling():
        return
    ticket.check()
    raise PeerLost("the worker was ejected", leg=Leg.DECODE)
