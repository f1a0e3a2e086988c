"""Calls to store processes: by frames or gRPC, deadlines, errors, and leases that are given back in batches.

Small calls go over a framed connection when there is one (kvstore_lines.py), all else over gRPC. Every failure is a
PandoError of the leg store. A call that broke marks its process in the view, so that others leave it alone for a while;
one that was only too late for its own caller's short deadline does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from common.base.clock import Clock
from common.base.config import TimeoutsConfig
from common.base.errors import DeadlineExceeded, Leg, PandoError, PeerLost, Unavailable
from common.cache import kvstore_wire as wire
from common.cache.kvstore_lines import StoreLines
from common.cache.kvstore_view import StoreView
from common.rpc.channel import ChannelPool
from common.rpc.errors import cancelled_elsewhere, from_rpc_error
from common.rpc.frames import MAX_BODY_BYTES, Method
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc

_RELEASE_AFTER_S = 0.02
_RELEASE_S = 1.0
_STATS_S = 1.0
_PATIENCE_S = 0.25
"""A process that does not answer for so long is taken for lost; shorter deadlines say nothing about it."""
_T = TypeVar("_T")
_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer", bound=Message)


class StoreCalls:
    """Stubs and framed connections by address. Lives on one loop."""

    def __init__(self, timeouts: TimeoutsConfig, view: StoreView, clock: Clock) -> None:
        self._channels = ChannelPool(timeouts)
        self._view = view
        self._clock = clock
        self._lines = StoreLines(timeouts, self._stats, clock)
        self._leases: dict[str, list[int]] = {}
        self._releasing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def stub(self, address: str) -> kvstore_pb2_grpc.KvStoreServiceStub:
        """For `run`."""
        return self._channels.stub(kvstore_pb2_grpc.KvStoreServiceStub, address)

    async def run(self, address: str, call: Callable[[float], Awaitable[_T]], deadline_s: float) -> _T:
        """Await `call(timeout)`, a call of the address's stub.

        Raises:
            PandoError: it failed, leg store.
        """
        try:
            answer = await call(max(0.0, deadline_s))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, Leg.STORE)
            self._note(address, failure, deadline_s)
            raise failure from error
        except asyncio.CancelledError:
            if not cancelled_elsewhere():
                raise
            raise PeerLost("the process of the store is no longer there", leg=Leg.STORE) from None
        self._view.answered(address)
        return answer

    async def call(
        self, address: str, method: Method[_Request, _Answer], request: _Request, deadline_s: float
    ) -> _Answer:
        """A small call, by the quickest way there is now.

        Raises:
            PandoError: it failed, leg store.
        """
        line = self._lines.find(address)
        body = request.SerializeToString() if line is not None else b""
        if line is None or len(body) > MAX_BODY_BYTES:
            ask = getattr(self.stub(address), method.name)
            answer: _Answer = await self.run(address, lambda s: ask(request, timeout=s), deadline_s)
            return answer
        try:
            answer = _parsed(method, await line.call(method.number, body, deadline_s))
        except PandoError as failure:
            self._note(address, failure, deadline_s)
            raise
        self._view.answered(address)
        return answer

    def release(self, address: str, lease_id: int) -> None:
        """Give a lease back soon; what gets lost on the way expires."""
        if self._closed:
            return
        self._leases.setdefault(address, []).append(lease_id)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_RELEASE_AFTER_S, self._send_releases)

    async def forget(self, address: str) -> None:
        """Close the channel to a process that is no longer listed."""
        self._leases.pop(address, None)
        self._lines.forget(address)
        await self._channels.forget(address)

    async def close(self) -> None:
        """Give all leases back and close."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._send_releases()
        await asyncio.gather(*self._releasing)
        await self._lines.close()
        await self._channels.close()

    def _send_releases(self) -> None:
        self._timer = None
        leases, self._leases = self._leases, {}
        for address, lease_ids in leases.items():
            task = asyncio.ensure_future(self._release(address, lease_ids))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _release(self, address: str, lease_ids: list[int]) -> None:
        request = kvstore_pb2.ReleaseRequest(lease_ids=lease_ids)
        try:
            await self.call(address, wire.RELEASE, request, _RELEASE_S)
        except PandoError:
            return  # they expire

    async def _stats(self, address: str) -> kvstore_pb2.GetStoreStatsResponse:
        request = kvstore_pb2.GetStoreStatsRequest()
        stats: kvstore_pb2.GetStoreStatsResponse = await self.stub(address).GetStoreStats(request, timeout=_STATS_S)
        return stats

    def _note(self, address: str, failure: PandoError, deadline_s: float) -> None:
        """Leave a process alone that did not answer."""
        late = isinstance(failure, DeadlineExceeded) and deadline_s >= _PATIENCE_S
        if late or isinstance(failure, Unavailable):
            self._view.failed(address, self._clock())


def _parsed(method: Method[Any, _Answer], body: bytes) -> _Answer:
    try:
        return method.parse_answer(body)
    except DecodeError as error:
        raise PeerLost("the store's answer makes no sense", leg=Leg.STORE) from error
