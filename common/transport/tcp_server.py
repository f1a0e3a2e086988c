"""The owning side of the `tcp` driver: one accepting thread and one thread per connection, all read-only.

It does not know how readers pool their connections; see `common.transport.tcp` for the protocol.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from common.base.errors import InvalidRequest, PandoError, StaleIncarnation
from common.transport import wire
from common.transport.checksum import CHUNK_BYTES
from common.transport.segments import Lent, Segments
from common.transport.tcp_stream import STATUS, receive_exactly, send_both

_OK = STATUS.pack(wire.Status.OK)
_HELLO_TIMEOUT_S = 2
_IDLE_TIMEOUT_S = 60
_SEND_TIMEOUT_S = 30
_ACCEPT_PAUSE_S = 0.05


@dataclass(slots=True, frozen=True)
class TcpConfig:
    """Where the driver listens and how much it takes on.

    Attributes:
        host: address to bind.
        port: 0 lets the kernel choose.
        advertise_host: what peers connect to; empty means `host`.
        num_threads: reads that run at once.
        max_connections: peers' connections served at once, one thread each.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise_host: str = ""
    num_threads: int = 4
    max_connections: int = 256


class TcpServer:
    """The owner's side: one accepting thread and one thread per connection."""

    def __init__(
        self,
        config: TcpConfig,
        segments: Segments,
        token: bytes,
        incarnation: int,
        between_chunks: Callable[[], None] | None,
    ) -> None:
        self._config = config
        self._segments = segments
        self._token = token
        self._incarnation = incarnation
        self._between_chunks = between_chunks
        self._lock = threading.Lock()
        self._serving: dict[socket.socket, threading.Thread] = {}
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    def start(self) -> int:
        """Bind and accept; returns the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in self._config.host else socket.AF_INET
        self._listener = socket.create_server((self._config.host, self._config.port), family=family, backlog=128)
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), name="pando-tcp-accept")
        self._acceptor.start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Hang up on everybody and join all threads."""
        if self._listener is None or self._acceptor is None or self._closing.is_set():
            return
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            serving = dict(self._serving)
        for connection, thread in serving.items():
            with contextlib.suppress(OSError):  # the peer may have gone first
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # shut down, the peer left at once, or no descriptor is free
                if self._closing.wait(_ACCEPT_PAUSE_S):
                    return
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="pando-tcp-serve")
            with self._lock:
                if len(self._serving) >= self._config.max_connections:
                    connection.close()
                    continue
                self._serving[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            _limit(connection, _HELLO_TIMEOUT_S)
            while self._answer(connection):
                _set_timeout(connection, socket.SO_RCVTIMEO, _IDLE_TIMEOUT_S)
        except OSError:
            pass  # the peer hung up, fell silent or stopped taking bytes: it is told nothing and forgotten
        finally:
            with self._lock:
                del self._serving[connection]
            connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        """Serve one request; False ends the connection."""
        try:
            count = wire.unpack_head(receive_exactly(connection, wire.HEAD_BYTES), self._token, self._incarnation)
            wants = wire.unpack_wants(receive_exactly(connection, count * wire.WANT_BYTES), count)
        except (InvalidRequest, StaleIncarnation) as error:
            _send_status(connection, wire.status_of(error))
            return False
        owed = b""  # the status behind a payload travels with that before the next
        try:
            for want in wants:
                lent = self._segments.lend(want)
                head, owed = owed + _OK, b""
                self._send(connection, head, lent)
                owed = _OK
        except PandoError as error:
            connection.sendall(owed + STATUS.pack(wire.status_of(error)))
            return False
        connection.sendall(owed)
        return True

    def _send(self, connection: socket.socket, head: bytes, lent: Lent) -> None:
        """Head and payload. Raises LeaseLost if the extent was reused while it was being sent."""
        data = lent.data
        step = lent.length if self._between_chunks is None else CHUNK_BYTES
        for start in range(0, lent.length, step):
            send_both(connection, head, data[start : start + step])
            head = b""
            if self._between_chunks is not None:
                self._between_chunks()
        lent.check_generation()


def _limit(connection: socket.socket, first_timeout_s: int) -> None:
    """No peer may hold a serving thread for ever, whether it dies, freezes or dawdles."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _set_timeout(connection, socket.SO_RCVTIMEO, first_timeout_s)
    _set_timeout(connection, socket.SO_SNDTIMEO, _SEND_TIMEOUT_S)


def _set_timeout(connection: socket.socket, option: int, seconds: int) -> None:
    """A kernel timeout on a blocking socket: unlike `settimeout` it costs no poll before each call."""
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))


def _send_status(connection: socket.socket, status: wire.Status) -> None:
    connection.sendall(STATUS.pack(status))
