"""The asking side of framed calls: one connection to one life of a process, many calls at a time.

A connection that ends, or whose peer says nothing for too long while calls wait, fails them with PeerLost at once and
stays ended; whoever wants to go on opens another. It does not know who its peer is, nor what the calls mean.
"""

from __future__ import annotations

import asyncio
from typing import cast

from google.protobuf.message import DecodeError

from common.base.config import TimeoutsConfig
from common.base.errors import DeadlineExceeded, Leg, PeerLost
from common.rpc import frames
from common.rpc.errors import from_code
from common.rpc.frames import Frame, Frames
from pando.v1 import types_pb2

_ALMOST = frames.MAX_CALLS - 16
"""The peer refuses what is beyond its bound, and hears of ended calls a little later."""


class FramedConnection(asyncio.Protocol):
    """Made by `connect`; lives on one loop. `leg` is blamed when a call has no answer."""

    def __init__(self, timeouts: TimeoutsConfig, leg: Leg) -> None:
        self._ping_s = timeouts.keepalive_s
        self._silence_s = timeouts.keepalive_s + timeouts.keepalive_timeout_s
        self._leg = leg
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._last_call = 0
        self._full = False
        self._heard_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._transport is not None

    @property
    def usable(self) -> bool:
        """Whether a call may be made now."""
        return self._transport is not None and not self._full and len(self._waiting) < _ALMOST

    async def call(self, what: int, body: bytes, deadline_s: float) -> bytes:
        """Ask; returns the answer's body. Cancelled, it lets the peer know.

        Raises:
            PandoError: what the handler raised; DeadlineExceeded; PeerLost.
        """
        transport = self._transport
        if transport is None:
            raise self._lost()
        number = self._last_call = self._last_call % 0xFFFFFFFF + 1
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[number] = future
        if self._watch is None:
            self._heard_s = self._loop.time()
            self._watch = self._loop.call_later(self._ping_s, self._look)
        transport.write(frames.pack(number, what, body, max(0.0, deadline_s)))
        timer = self._loop.call_later(max(0.0, deadline_s), self._late, future)
        try:
            return await future
        finally:
            timer.cancel()
            if self._waiting.pop(number, None) is not None and self._transport is transport:
                transport.write(frames.pack(number, frames.CANCEL))

    def close(self) -> None:
        """End it; calls that wait fail with PeerLost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._lost())

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except ValueError:
            self.close()

    def _take(self, frame: Frame) -> None:
        future = self._waiting.pop(frame.call, None)
        if future is None or future.done():
            return  # nobody waits any more, or a ping
        if frame.what == frames.OK:
            future.set_result(frame.body)
            return
        try:
            error = from_code(frame.what, types_pb2.ErrorDetail.FromString(frame.body))
        except DecodeError:
            error = PeerLost("the answer makes no sense", leg=self._leg)
        error.leg = error.leg or self._leg
        future.set_exception(error)

    def _late(self, future: asyncio.Future[bytes]) -> None:
        if not future.done():
            future.set_exception(DeadlineExceeded("the request's time is up", leg=self._leg))

    def _look(self) -> None:
        """Ping a peer that is silent while calls wait, and give it up in the end."""
        self._watch = None
        if not self._waiting or self._transport is None:
            return
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= self._silence_s:
            self.close()
            return
        if silent_s >= self._ping_s:
            self._transport.write(frames.pack(0, frames.PING))
        self._watch = self._loop.call_later(self._ping_s / 2, self._look)

    def _lost(self) -> PeerLost:
        return PeerLost("the connection was lost", leg=self._leg)


async def connect(host: str, port: int, incarnation: int, timeouts: TimeoutsConfig, leg: Leg) -> FramedConnection:
    """A connection to one life of a process.

    Raises:
        PandoError: it is not there, is another, or does not answer in time.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeouts.connect_s):
            _, connection = await loop.create_connection(lambda: FramedConnection(timeouts, leg), host, port)
    except (OSError, OverflowError, TimeoutError) as error:  # a port may be none
        raise PeerLost(f"{host}:{port}: {error}", leg=leg) from error
    try:
        await connection.call(frames.HELLO, frames.hello(incarnation), timeouts.connect_s)
    except BaseException:
        connection.close()
        raise
    return connection
