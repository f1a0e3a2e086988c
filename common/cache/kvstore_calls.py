"""Calls to store processes: stubs, deadlines, errors, and leases that are given back in batches.

Every failure is a PandoError of the leg store. A call that broke marks its process in the view, so that others leave it
alone for a while; one that was only too late for its own caller's short deadline does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from common.base.clock import Clock
from common.base.config import TimeoutsConfig
from common.base.errors import DeadlineExceeded, Leg, PandoError, PeerLost, Unavailable
from common.cache.kvstore_view import StoreView
from common.rpc.channel import ChannelPool
from common.rpc.errors import cancelled_elsewhere, from_rpc_error
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc

_RELEASE_AFTER_S = 0.02
_RELEASE_S = 1.0
_PATIENCE_S = 0.25
"""A process that does not answer for so long is taken for lost; shorter deadlines say nothing about it."""
_T = TypeVar("_T")


class StoreCalls:
    """Stubs by address. Lives on one loop."""

    def __init__(self, timeouts: TimeoutsConfig, view: StoreView, clock: Clock) -> None:
        self._channels = ChannelPool(timeouts)
        self._view = view
        self._clock = clock
        self._stubs: dict[str, kvstore_pb2_grpc.KvStoreServiceStub] = {}
        self._leases: dict[str, list[int]] = {}
        self._releasing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def stub(self, address: str) -> kvstore_pb2_grpc.KvStoreServiceStub:
        """For `run`."""
        stub = self._stubs.get(address)
        if stub is None:
            stub = self._stubs[address] = kvstore_pb2_grpc.KvStoreServiceStub(self._channels.get(address))
        return stub

    async def run(self, address: str, call: Callable[[float], Awaitable[_T]], deadline_s: float) -> _T:
        """Await `call(timeout)`, a call of the address's stub.

        Raises:
            PandoError: it failed, leg store.
        """
        try:
            answer = await call(max(0.0, deadline_s))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, Leg.STORE)
            late = isinstance(failure, DeadlineExceeded) and deadline_s >= _PATIENCE_S
            if late or isinstance(failure, Unavailable):
                self._view.failed(address, self._clock())
            raise failure from error
        except asyncio.CancelledError:
            if not cancelled_elsewhere():
                raise
            raise PeerLost("the process of the store is no longer there", leg=Leg.STORE) from None
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
        self._stubs.pop(address, None)
        self._leases.pop(address, None)
        await self._channels.forget(address)

    async def close(self) -> None:
        """Give all leases back and close."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._send_releases()
        await asyncio.gather(*self._releasing)
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
            await self.run(address, lambda s: self.stub(address).Release(request, timeout=s), _RELEASE_S)
        except PandoError:
            return  # they expire
