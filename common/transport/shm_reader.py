"""The reading side of the `shm` driver: mappings of peers' regions, and one job per read.

It does not know what is lent here; see `common.transport.shm`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from common.base.errors import LeaseLost, Leg, PeerLost, StaleIncarnation
from common.transport import wire
from common.transport.base import Read
from common.transport.copying import Copying, Source
from common.transport.region import RegionView
from common.transport.shm_server import ATTACH, ATTACH_MAGIC, STATUS, Address

_ATTACH_TIMEOUT_S = 2.0
_MAX_ATTACHED = 256
_LOOK = socket.MSG_DONTWAIT | socket.MSG_PEEK


class _Attachment:
    """A peer's region, mapped, and the connection that tells whether the peer lives."""

    def __init__(self, connection: socket.socket, view: RegionView) -> None:
        self._connection = connection
        self.view = view
        self.source = Source.of(view.data)

    def check_alive(self) -> None:
        """Raise PeerLost when the owner has closed the connection, or was killed."""
        try:
            said = self._connection.recv(1, _LOOK)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLost(f"shm peer: {error}", leg=Leg.TRANSFER) from error
        raise PeerLost("shm peer died" if not said else "shm peer speaks out of turn", leg=Leg.TRANSFER)

    def is_alive(self) -> bool:
        """Whether the owner still holds the connection."""
        try:
            self.check_alive()
        except PeerLost:
            return False
        return True

    def close(self) -> None:
        """Hang up; the mapping goes with the last job that still copies from it."""
        self._connection.close()


class Attachments:
    """Mappings by (peer, segment), least recently used first; touched by mover threads and the loop."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[tuple[bytes, int], _Attachment] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, address: Address, segment: int) -> _Attachment | None:
        """A mapping from an earlier read; shared by all readers."""
        key = (address.pack(), segment)
        with self._lock:
            found = self._by_key.get(key)
            if found is not None:
                self._by_key.move_to_end(key)
        return found

    def keep(self, address: Address, segment: int, attachment: _Attachment) -> _Attachment:
        """Share a new mapping; returns the one to use, another if a concurrent read was first.

        Mappings of owners that died meanwhile are dropped: each would keep a dead worker's whole pool in memory.
        """
        with self._lock:
            dead = [key for key, known in self._by_key.items() if not known.is_alive()]
            surplus = [self._by_key.pop(key) for key in dead]
            kept = self._by_key.setdefault((address.pack(), segment), attachment)
            if kept is not attachment:
                surplus.append(attachment)
            elif len(self._by_key) > _MAX_ATTACHED:
                surplus.append(self._by_key.popitem(last=False)[1])
        for unused in surplus:
            unused.close()
        return kept

    def drop(self, address: Address) -> None:
        """Forget everything of one peer; copies under way from it end with PeerLost."""
        owner = address.pack()
        with self._lock:
            keys = [key for key in self._by_key if key[0] == owner]
            dropped = [self._by_key.pop(key) for key in keys]
        for attachment in dropped:
            attachment.close()

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            dropped, self._by_key = list(self._by_key.values()), OrderedDict()
        for attachment in dropped:
            attachment.close()


class CopyJob:
    """One batch of extents from one peer."""

    def __init__(
        self,
        attached: Attachments,
        copying: Copying,
        address: Address,
        incarnation: int,
        reads: Sequence[Read],
        *,
        between_chunks: Callable[[], None] | None,
    ) -> None:
        self._attached = attached
        self._copying = copying
        self._address = address
        self._incarnation = incarnation
        self._reads = reads
        self._between_chunks = between_chunks
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._aborted = False

    def is_quick(self, num_bytes: int) -> bool:
        """Whether it copies at most so many bytes, and only from memory that is mapped already."""
        if sum([read.source.length for read in self._reads]) > num_bytes:
            return False
        segments = {read.source.segment for read in self._reads}
        return all(self._attached.find(self._address, segment) is not None for segment in segments)

    def run(self) -> None:
        """Copy and verify every extent. Raises the errors of `Transport.read`."""
        try:
            attachments: dict[int, _Attachment] = {}
            for read in self._reads:
                if read.source.incarnation != self._incarnation:
                    raise StaleIncarnation("the extent was lent by another incarnation", leg=Leg.TRANSFER)
                segment = read.source.segment
                if segment not in attachments:
                    attachments[segment] = self._attached.find(self._address, segment) or self._attach(segment)
                self._copy(read, attachments[segment])
            for attachment in attachments.values():
                attachment.check_alive()
        except OSError as error:
            raise PeerLost(f"shm peer: {error}", leg=Leg.TRANSFER) from error
        except PeerLost:
            if not self._aborted:
                self._attached.drop(self._address)
            raise

    def abort(self) -> None:
        """End the copy at the next piece, or the attaching at once."""
        with self._lock:
            self._aborted = True
            if self._connection is not None:
                with contextlib.suppress(OSError):  # not connected yet
                    self._connection.shutdown(socket.SHUT_RDWR)

    def _copy(self, read: Read, attachment: _Attachment) -> None:
        source, view = read.source, attachment.view
        index = view.geometry.extent_of(source.offset, source.length)
        _check_generation(view, index, source.generation)
        found = self._copying.copy(read.target.cast("B"), attachment.source, source.offset, self._before_piece)
        _check_generation(view, index, source.generation)
        wire.check_sum(source, found)

    def _before_piece(self) -> None:
        self._check_wanted()
        if self._between_chunks is not None:
            self._between_chunks()

    def _check_wanted(self) -> None:
        if self._aborted:
            raise PeerLost("the read was aborted", leg=Leg.TRANSFER)

    def _attach(self, segment: int) -> _Attachment:
        """Ask the owner for a segment's memory, over a connection of its own."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with self._lock:
                self._connection = connection
            self._check_wanted()
            view = self._ask(connection, segment)
        except BaseException:
            connection.close()
            raise
        finally:
            with self._lock:
                self._connection = None
        return self._attached.keep(self._address, segment, _Attachment(connection, view))

    def _ask(self, connection: socket.socket, segment: int) -> RegionView:
        connection.settimeout(_ATTACH_TIMEOUT_S)
        connection.connect(self._address.path)
        connection.send(ATTACH.pack(ATTACH_MAGIC, self._address.token, self._incarnation, segment))
        answer, fds, _, _ = socket.recv_fds(connection, STATUS.size, 1)
        connection.settimeout(None)
        try:
            if len(answer) != STATUS.size:
                raise PeerLost("shm peer hung up", leg=Leg.TRANSFER)
            wire.raise_for(STATUS.unpack(answer)[0])
            if len(fds) != 1:
                raise PeerLost("shm peer passed no memory", leg=Leg.TRANSFER)
            view = RegionView(fds[0])
        finally:
            for fd in fds:
                os.close(fd)
        if view.incarnation != self._incarnation:
            raise StaleIncarnation("the peer's region is of another incarnation", leg=Leg.TRANSFER)
        return view


def _check_generation(view: RegionView, index: int, lent: int) -> None:
    found = view.generation(index)
    if found != lent:
        raise LeaseLost(f"extent {index} is at generation {found}, not {lent}", leg=Leg.TRANSFER)
