"""uvicorn's HTTP/1.1 protocol with two gaps closed: the bound on a request's head, and clients that leave a pipeline.

uvicorn bounds bodies that nobody reads, but neither heads nor trailers; and of the requests that a client sent ahead
on one connection, it tells only the last that the client has left.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request's line and headers, or of a chunked body's trailers, give or take one read."""

_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class GatewayProtocol(HttpToolsProtocol):
    """One connection. A client that closes its sending side has left: nothing more is written to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Parse; refuse a head without end."""
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if not self._unanswered:
                self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def eof_received(self) -> None:
        """The client will send nothing more; the transport closes."""
        self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._left()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request's head is here."""
        self._num_head_bytes = 0
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

    def _left(self) -> None:
        """Tell all requests of the connection; those that wait for their turn never get one."""
        self.pipeline.clear()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()
