"""The reading side of the `tcp` driver: pooled connections, and one job per read.

It does not know regions or what is lent here; see `common.transport.tcp` for the protocol.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

from common.base.errors import Leg, PandoError, PeerLost
from common.transport import wire
from common.transport.address import Address
from common.transport.base import Read
from common.transport.copying import Copying
from common.transport.tcp_stream import STATUS, receive_exactly, receive_statuses

_CONNECT_TIMEOUT_S = 2.0
_MAX_IDLE = 64
_MAX_IDLE_PER_PEER = 4
_SMALL_BYTES = 4096
"""Of a request that the buffers of a connection on which nothing is in flight take at once."""


class ConnectionPool:
    """Idle connections to peers, most recently used last; touched by mover threads and the loop."""

    def __init__(self) -> None:
        self._idle: list[tuple[Address, socket.socket]] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, address: Address) -> socket.socket | None:
        """The caller owns what it gets."""
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == address:
                    return self._idle.pop(place)[1]
        return None

    def give(self, address: Address, connection: socket.socket) -> None:
        """Take back a connection on which nothing is in flight."""
        surplus: socket.socket | None = connection
        with self._lock:
            if not self._closed:
                mine = [place for place, (other, _) in enumerate(self._idle) if other == address]
                oldest = mine[0] if len(mine) >= _MAX_IDLE_PER_PEER else 0 if len(self._idle) >= _MAX_IDLE else None
                surplus = None if oldest is None else self._idle.pop(oldest)[1]
                self._idle.append((address, connection))
        if surplus is not None:
            surplus.close()

    def drop(self, address: Address) -> None:
        """Close the idle connections to one peer."""
        with self._lock:
            dropped = [connection for other, connection in self._idle if other == address]
            self._idle = [entry for entry in self._idle if entry[0] != address]
        for connection in dropped:
            connection.close()

    def close(self) -> None:
        """Close all; connections given back later are closed at once."""
        with self._lock:
            dropped, self._idle, self._closed = self._idle, [], True
        for _, connection in dropped:
            connection.close()


class ReadJob:
    """One batch of extents over one connection."""

    def __init__(
        self, pool: ConnectionPool, copying: Copying, address: Address, request: bytes, reads: Sequence[Read]
    ) -> None:
        self._pool = pool
        self._copying = copying
        self._address = address
        self._request = request
        self._reads = reads
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._aborted = False

    def ask_ahead(self) -> None:
        """Ask over a pooled connection at once, so that the owner works while a thread wakes; `run` must follow.

        Called on the loop, which a small request never holds up.
        """
        if len(self._request) <= _SMALL_BYTES:
            self._ask_idle()

    def run(self) -> None:
        """Receive and verify every extent. Raises the errors of `Transport.read`."""
        try:
            self._receive(self._ask_pooled() or self._ask_anew())
        except OSError as error:
            self._hang_up()
            raise PeerLost(f"tcp peer {self._address.host}:{self._address.port}: {error}", leg=Leg.TRANSFER) from error
        except PandoError:
            self._hang_up()
            raise
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(self._address, connection)

    def abort(self) -> None:
        """Shut the connection down: a thread blocked on it wakes and finds it ended."""
        with self._lock:
            self._aborted = True
            if self._connection is not None:
                with contextlib.suppress(OSError):  # not connected yet, or hung up already
                    self._connection.shutdown(socket.SHUT_RDWR)

    def _ask_pooled(self) -> bytes | None:
        """The first status over a pooled connection; None without one, or if its owner has closed it meanwhile."""
        if self._connection is None:
            self._ask_idle()
        if self._connection is None:
            return None
        try:
            return receive_exactly(self._connection, STATUS.size)
        except OSError:
            self._hang_up()
            if self._aborted:
                raise
            return None

    def _ask_anew(self) -> bytes:
        """The first status over a new connection."""
        connection = self._connect()
        self._ask(connection)
        return receive_exactly(connection, STATUS.size)

    def _ask_idle(self) -> None:
        """Send the request over a pooled connection, if there is one that still takes it."""
        connection = self._pool.take(self._address)
        if connection is not None:
            try:
                self._ask(connection)
            except OSError:
                self._hang_up()

    def _ask(self, connection: socket.socket) -> None:
        self._own(connection)
        connection.sendall(self._request)

    def _connect(self) -> socket.socket:
        address = (self._address.host, self._address.port)
        connection = socket.socket(socket.AF_INET6 if ":" in self._address.host else socket.AF_INET, socket.SOCK_STREAM)
        self._own(connection)
        connection.settimeout(_CONNECT_TIMEOUT_S)
        connection.connect(address)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _own(self, connection: socket.socket) -> None:
        """Let `abort` reach the connection; one that comes after an abort ends here."""
        with self._lock:
            self._connection = connection
            if self._aborted:
                raise ConnectionAbortedError("the read was aborted")

    def _receive(self, first_status: bytes) -> None:
        assert self._connection is not None
        connection, before = self._connection, STATUS.unpack(first_status)[0]
        for place, read in enumerate(self._reads, start=1):
            wire.raise_for(before)
            found = self._copying.receive(connection, read.target.cast("B"))
            after, *following = receive_statuses(connection, 1 if place == len(self._reads) else 2)
            wire.raise_for(after)
            wire.check_sum(read.source, found)
            if following:
                before = following[0]
            elif place < len(self._reads):
                raise ConnectionResetError("the peer hung up between two extents")

    def _hang_up(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
