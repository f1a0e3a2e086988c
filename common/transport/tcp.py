"""Reads over TCP: the driver that works everywhere.

A reader thread writes one request and receives every payload straight into its target (blocking, hashed on the way);
an owner thread per connection checks the request and sends from the region's memory::

    reader -> owner   request head, wants                 (wire.py)
    owner -> reader   per want: status, then if OK: payload, status (generation checked after sending)

The owner stops at the first status that is not OK; the reader then drops the connection. Connections are pooled per
peer, so that a read costs one round trip; a connection is reused only after a read that went well.

Bounds: `max_connections` served at once (more are hung up on), one request in flight on each, a first request within
`_HELLO_TIMEOUT_S`, idle ones closed after `_IDLE_TIMEOUT_S`, `_MAX_IDLE` pooled per reader. All threads sleep in the
kernel. Nothing is encrypted and the token travels in clear: off loopback it belongs on a trusted network.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from common.base.errors import Unsupported
from common.transport import wire
from common.transport.address import Address, literal
from common.transport.base import Endpoint, Read
from common.transport.copying import load_copying
from common.transport.movers import Movers
from common.transport.region import Region
from common.transport.segments import Segments
from common.transport.tcp_reader import ConnectionPool, ReadJob
from common.transport.tcp_server import TcpConfig, TcpServer


class TcpTransport:
    """The `tcp` driver; see `common.transport.base.Transport`."""

    name = "tcp"

    def __init__(
        self,
        host_id: str,
        incarnation: int,
        config: TcpConfig | None = None,
        between_chunks: Callable[[], None] | None = None,
    ) -> None:
        """`between_chunks` is called by the owner's sending thread between two chunks: a failpoint for tests."""
        self._config = config or TcpConfig()
        self._host_id = host_id
        self._incarnation = incarnation
        self._token = secrets.token_bytes(wire.TOKEN_BYTES)
        self._segments = Segments(incarnation)
        self._movers = Movers("tcp", self._config.num_threads)
        self._pool = ConnectionPool()
        self._copying = load_copying()
        self._server = TcpServer(self._config, self._segments, self._token, incarnation, between_chunks)
        self._address: Address | None = None

    async def start(self) -> None:
        """Listen. Raises Unsupported when the address cannot be bound or named."""
        host = self._config.advertise_host or self._config.host
        try:
            address = literal(host)
            port = self._server.start()
        except OSError as error:
            raise Unsupported(f"tcp transport cannot listen on {self._config.host}: {error}") from error
        self._address = Address(address, port, self._token)

    def register(self, region: Region) -> int:
        """Lend a region; returns its segment id."""
        return self._segments.add(region)

    def endpoint(self) -> Endpoint:
        """The listener's address and the token to read from it."""
        assert self._address is not None, "not started"
        return Endpoint(self.name, self._host_id, self._incarnation, self._address.pack())

    async def read(self, peer: Endpoint, reads: Sequence[Read], deadline_s: float) -> None:
        """See `Transport.read`."""
        wire.check_reads(reads)
        address = Address.unpack(peer.descriptor)
        if not reads:
            return
        request = wire.pack_request(address.token, peer.incarnation, [read.source for read in reads])
        job = ReadJob(self._pool, self._copying, address, request, reads)
        await self._movers.run(job, deadline_s, job.ask_ahead)

    async def close_peer(self, peer: Endpoint) -> None:
        """Close the pooled connections to a peer."""
        self._pool.drop(Address.unpack(peer.descriptor))

    async def close(self) -> None:
        """End reads, connections and threads."""
        await self._movers.close()
        self._pool.close()
        self._server.close()
