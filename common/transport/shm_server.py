"""The owning side of the `shm` driver: hands out descriptors of its memory to peers that may have them.

It does not know what is read, when, or how often; see `common.transport.shm`.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time

from common.base.errors import PandoError, Unsupported
from common.transport import wire
from common.transport.region import Region
from common.transport.segments import Segments

ATTACH = struct.Struct(f"<4s{wire.TOKEN_BYTES}sQI")  # magic, token, incarnation, segment
ATTACH_MAGIC = b"PNDM"
STATUS = struct.Struct("<I")
_VERSION = 1
_ADDRESS = struct.Struct(f"<B{wire.TOKEN_BYTES}s16s")  # version, token, socket name
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MAX_PEERS = 512
_ACCEPT_PAUSE_S = 0.05


class Address:
    """Name of an owner's abstract socket and its token."""

    def __init__(self, token: bytes, name: bytes) -> None:
        self.token = token
        self.name = name

    @property
    def path(self) -> bytes:
        """As `bind` and `connect` take it."""
        return b"\0pando-" + self.name

    def pack(self) -> bytes:
        return _ADDRESS.pack(_VERSION, self.token, self.name)

    @classmethod
    def unpack(cls, descriptor: bytes) -> Address:
        """Raises InvalidRequest."""
        try:
            version, token, name = _ADDRESS.unpack(descriptor)
        except struct.error as error:
            raise wire.invalid("the peer's shm descriptor makes no sense") from error
        if version != _VERSION:
            raise wire.invalid(f"a shm descriptor of version {version}")
        return cls(token, name)


class ShmServer:
    """The owner's side: one thread that hands out descriptors and holds the connections that mean life."""

    def __init__(self, address: Address, segments: Segments, incarnation: int) -> None:
        self._address = address
        self._segments = segments
        self._incarnation = incarnation
        self._peers: set[socket.socket] = set()
        self._stop: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(self._address.path)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        stopped, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, args=(listener, stopped), name="pando-shm-serve")
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody and join the thread."""
        if self._stop is not None and self._thread is not None:
            self._stop.close()
            self._thread.join()

    def _serve(self, listener: socket.socket, stopped: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, listener, stopped:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(stopped, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is stopped:
                        self._hang_up_all()
                        return
                    if key.fileobj is listener:
                        self._accept(selector, listener)
                    else:
                        assert isinstance(key.fileobj, socket.socket)
                        self._answer(selector, key.fileobj)

    def _accept(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(_ACCEPT_PAUSE_S)  # no descriptor is free: try again, but not in a tight loop
            return
        connection.setblocking(False)
        if len(self._peers) >= _MAX_PEERS:
            connection.close()
            return
        self._peers.add(connection)
        selector.register(connection, selectors.EVENT_READ)

    def _answer(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        """Serve one request; anything but a good one ends the connection."""
        try:
            message = connection.recv(ATTACH.size + 1)
            if message and self._reply(connection, message):
                return
        except OSError:
            pass  # the peer died or does not take its answer: hung up on below
        selector.unregister(connection)
        self._peers.discard(connection)
        connection.close()

    def _reply(self, connection: socket.socket, message: bytes) -> bool:
        try:
            region = self._wanted(connection, message)
        except PandoError as error:
            connection.send(STATUS.pack(wire.status_of(error)))
            return False
        fd = os.open(f"/proc/self/fd/{region.fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(connection, [STATUS.pack(wire.Status.OK)], [fd])
        finally:
            os.close(fd)
        return True

    def _wanted(self, connection: socket.socket, message: bytes) -> Region:
        """The region asked for. Raises PandoError."""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
            raise Unsupported("shm serves peers of the same user only")
        if len(message) != ATTACH.size:
            raise wire.invalid("not an attach request")
        magic, token, incarnation, segment = ATTACH.unpack(message)
        wire.check_caller(magic == ATTACH_MAGIC, token, self._address.token, incarnation, self._incarnation)
        return self._segments.region(segment)

    def _hang_up_all(self) -> None:
        for connection in self._peers:
            connection.close()
        self._peers.clear()
