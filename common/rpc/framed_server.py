"""Serves some unary methods of a gRPC servicer over framed connections as well: a call costs a sixth of gRPC's time.

The handlers are the servicer's own and see the same: request, deadline, and cancellation when the deadline has passed,
the caller cancels or its connection ends. What they raise travels as over gRPC.

Bounds: connections, calls of each, bytes of a frame, and what an asker that does not read leaves unsent: of it nothing
more is read until it does. Who does not say hello in time, or sends what is no frame, is hung up on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from common.base.errors import Overloaded, PandoError, Unsupported
from common.rpc import frames
from common.rpc.edge import at_the_edge
from common.rpc.errors import detail_of, status_of
from common.rpc.frames import Frame, Frames, Method

_MAX_CONNECTIONS = 256
_HELLO_S = 2.0


@dataclass(frozen=True, slots=True)
class Served:
    """A method and its handler, which takes a request and a context with the time that remains."""

    method: Method[Any, Any]
    handler: Callable[[Any, Any], Awaitable[Any]]


class FramedServer:
    """Lives on the loop of its handlers.

    Args:
        incarnation: life of this process; askers must mean it.
        served: the methods that may be asked for.
    """

    def __init__(self, incarnation: int, served: Iterable[Served]) -> None:
        self.hello = frames.hello(incarnation)
        self.served = {one.method.number: one for one in served}
        self.closing = False
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str) -> int:
        """Serve on a free port of `host`; returns it. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let running ones end within the grace time, then cut them."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        running = {task for connection in self._connections for task in connection.running()}
        if running:
            await asyncio.wait(running, timeout=grace_s)
        for connection in list(self._connections):
            connection.end()
        if running:
            await asyncio.wait(running)

    def admit(self, connection: _Connection) -> bool:
        """Whether there is room for one more."""
        if self.closing or len(self._connections) >= _MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        """It has ended."""
        self._connections.discard(connection)


class _TimeLeft:
    """What handlers ask of a context."""

    def __init__(self, ends_s: float, now_s: Callable[[], float]) -> None:
        self._ends_s = ends_s
        self._now_s = now_s

    def time_remaining(self) -> float:
        """Seconds until the call's deadline."""
        return max(0.0, self._ends_s - self._now_s())


class _Connection(asyncio.Protocol):
    """One asker."""

    def __init__(self, server: FramedServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._stranger: asyncio.TimerHandle | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}

    def running(self) -> list[asyncio.Task[None]]:
        """Calls that have no answer yet; no more will come."""
        if self._transport is not None:
            self._transport.pause_reading()
        return list(self._calls.values())

    def end(self) -> None:
        """Hang up; what was answered still goes out."""
        self._cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        if not self._server.admit(self):
            stream.abort()
            return
        self._transport = stream
        self._stranger = self._loop.call_later(_HELLO_S, stream.abort)
        connection = stream.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone ends it, some time

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.forget(self)
        if self._stranger is not None:
            self._stranger.cancel()
        self._cancel()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._server.closing:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except ValueError:
            if self._transport is not None:
                self._transport.abort()

    def _take(self, frame: Frame) -> None:
        """Raises ValueError for what an asker would not say."""
        if self._stranger is not None:
            if frame.what != frames.HELLO or frame.body != self._server.hello:
                raise ValueError("this is no hello to this process")
            self._stranger.cancel()
            self._stranger = None
            self._send(frame.call, frames.OK)
        elif frame.what == frames.PING:
            self._send(frame.call, frames.OK)
        elif frame.what == frames.CANCEL:
            if frame.call in self._calls:
                self._calls[frame.call].cancel()
        elif frame.call in self._calls:
            raise ValueError("two calls of one number")
        else:
            self._begin(frame)

    def _begin(self, frame: Frame) -> None:
        served = self._server.served.get(frame.what)
        if served is None:
            self._refuse(frame.call, Unsupported("no such method here", reason="not_framed"))
        elif len(self._calls) >= frames.MAX_CALLS:
            self._refuse(frame.call, Overloaded("too many calls of one connection", retry_after_s=0.1))
        else:
            task = self._calls[frame.call] = self._loop.create_task(self._serve(frame, served))
            timer = self._loop.call_later(frame.seconds, task.cancel)
            task.add_done_callback(lambda _: self._done(frame.call, timer))

    async def _serve(self, frame: Frame, served: Served) -> None:
        context = _TimeLeft(self._loop.time() + frame.seconds, self._loop.time)
        try:
            answer = await served.handler(served.method.parse_request(frame.body), context)
            self._send(frame.call, frames.OK, answer.SerializeToString())
        except Exception as error:  # noqa: BLE001 - the edge: everything leaves as a status
            self._refuse(frame.call, at_the_edge(error))

    def _done(self, call: int, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        del self._calls[call]

    def _refuse(self, call: int, error: PandoError) -> None:
        self._send(call, status_of(error).value[0], detail_of(error).SerializeToString())

    def _send(self, call: int, what: int, body: bytes = b"") -> None:
        if self._transport is not None:
            self._transport.write(frames.pack(call, what, body))

    def _cancel(self) -> None:
        for task in self._calls.values():
            task.cancel()
