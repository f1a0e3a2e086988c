"""uvicorn's HTTP/1.1 protocol with three gaps closed: bounds on a request's head in bytes and in time, and clients
that leave a pipeline.

uvicorn bounds bodies that nobody reads, but neither heads nor trailers; a new connection may stay silent, or send its
head byte by byte, for ever; and of the requests that a client sent ahead on one connection, it tells only the last
that the client has left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_HEAD_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class GatewayProtocol(HttpToolsProtocol):
    """One connection. A client that closes its sending side has left: nothing more is written to it.

    Args:
        max_head_bytes: most bytes of a request's line and headers, or of a chunked body's trailers, give or take one
            read.
        head_timeout_s: seconds from the connection, or from the first byte of a later request, to the end of its head.
    """

    def __init__(self, *args: Any, max_head_bytes: int, head_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_head_bytes = max_head_bytes
        self._head_timeout_s = head_timeout_s
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._num_head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first head has to come."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parse; refuse a head without end."""
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > self._max_head_bytes:
            self._refuse(_HEAD_TOO_LARGE)

    def eof_received(self) -> None:
        """The client will send nothing more; the transport closes."""
        self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._stop_timer()
        self._left()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._num_head_bytes = 0
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request's head is here."""
        self._num_head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._num_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request's last byte."""
        self._num_head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Answers leave in the order of their requests."""
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        super().on_response_complete()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_timeout_s, self._on_slow_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_slow_head(self) -> None:
        self._head_timer = None
        if self._unanswered:
            self._await_head()
        else:
            self._refuse(_HEAD_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        """End the connection; `answer` is written unless it could get into the middle of another."""
        if self.transport.is_closing():
            return
        if not self._unanswered:
            self.transport.write(answer)
        self.transport.close()

    def _left(self) -> None:
        """Tell all requests of the connection; those that wait for their turn never get one."""
        self.pipeline.clear()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()


def protocol_factory(max_head_bytes: int, head_timeout_s: float) -> Callable[..., asyncio.Protocol]:
    """What uvicorn calls for every connection."""
    return partial(GatewayProtocol, max_head_bytes=max_head_bytes, head_timeout_s=head_timeout_s)
