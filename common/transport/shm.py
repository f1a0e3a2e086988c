"""Reads within one host: the reader maps the owner's memory read-only and copies.

The owner passes a read-only descriptor of a region's memfd over an abstract unix socket (SCM_RIGHTS) to peers of its
own user that know its token. One connection per (peer, segment) stays open and is the sign of life: the kernel closes
it when the owner dies, however it dies, while the mapping stays readable. Nothing is ever left in a file system.

A copy is one pass, in which it is hashed. It counts only if the generation was the same before and after it, the
checksum is right and the owner was alive at the end. A *frozen* owner changes nothing: its memory stays as it was lent,
so such a read may well succeed.

Why not /proc/<pid>/fd: it needs ptrace rights and a common pid namespace, and a recycled pid is another process.

What is little and mapped already is copied on the caller's loop, for a thread would take longer.

Bounds: `num_threads` copies at once, `_MAX_ATTACHED` mappings per reader, `_MAX_PEERS` connections per owner.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from common.base.errors import Leg, Unsupported
from common.transport import wire
from common.transport.base import Endpoint, Read
from common.transport.copying import load_copying
from common.transport.movers import Movers
from common.transport.region import Region
from common.transport.segments import Segments
from common.transport.shm_reader import Attachments, CopyJob
from common.transport.shm_server import Address, ShmServer

_AT_ONCE_BYTES = 2 * 1024 * 1024
"""Copied in about as long as handing a job to a thread and back takes: 0.15 to 0.3 ms."""


class ShmTransport:
    """The `shm` driver; see `common.transport.base.Transport`."""

    name = "shm"

    def __init__(
        self,
        host_id: str,
        incarnation: int,
        num_threads: int = 2,
        between_chunks: Callable[[], None] | None = None,
    ) -> None:
        """`between_chunks` is called by the reader's copying thread between two chunks: a failpoint for tests."""
        self._host_id = host_id
        self._incarnation = incarnation
        self._address = Address(secrets.token_bytes(wire.TOKEN_BYTES), secrets.token_hex(8).encode())
        self._segments = Segments(incarnation)
        self._movers = Movers("shm", num_threads)
        self._attached = Attachments()
        self._copying = load_copying()
        self._server = ShmServer(self._address, self._segments, incarnation)
        self._between_chunks = between_chunks

    async def start(self) -> None:
        """Listen. Raises Unsupported where the machine has no memfd or abstract sockets."""
        try:
            self._server.start()
        except OSError as error:
            raise Unsupported(f"shm transport cannot listen: {error}") from error

    def register(self, region: Region) -> int:
        """Lend a region; returns its segment id."""
        return self._segments.add(region)

    def endpoint(self) -> Endpoint:
        """The socket's name and the token to attach through it."""
        return Endpoint(self.name, self._host_id, self._incarnation, self._address.pack())

    async def read(self, peer: Endpoint, reads: Sequence[Read], deadline_s: float) -> None:
        """See `Transport.read`. Raises Unsupported for a peer on another host or of another user."""
        wire.check_reads(reads)
        if peer.host_id != self._host_id:
            raise Unsupported("shm reaches peers on the same host only", leg=Leg.TRANSFER)
        address = Address.unpack(peer.descriptor)
        if reads:
            between = self._between_chunks
            job = CopyJob(self._attached, self._copying, address, peer.incarnation, reads, between_chunks=between)
            if deadline_s > 0 and between is None and job.is_quick(_AT_ONCE_BYTES):
                self._movers.run_here(job)
            else:
                await self._movers.run(job, deadline_s)

    async def close_peer(self, peer: Endpoint) -> None:
        """Drop the mappings of a peer's regions."""
        self._attached.drop(Address.unpack(peer.descriptor))

    async def close(self) -> None:
        """End reads, mappings and the thread."""
        await self._movers.close()
        self._attached.close()
        self._server.close()
