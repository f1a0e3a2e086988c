"""Reads over UCX: the driver for the network between hosts, by RDMA where libucp and the machine have it.

Messages are UCX active messages over a client-server connection (a TCP port to meet on; UCX then picks the lanes)::

    reader -> owner   REQUEST  fetch number, request for one extent (wire.py); no payload
    owner -> reader   DATA     fetch number; payload: the extent, by rendezvous when large
    owner -> reader   STATUS   fetch number, status: refused, or sent and the generation checked afterwards

One thread per process talks to UCX and sleeps in the kernel when nothing moves. A library that writes in its own time
cannot be allowed near a block: bytes land in slabs (ucx_slabs.py), a mover thread verifies them and copies them into
the target. So an aborted read frees its blocks at once; slabs still known to the library stay in quarantine.

Bounds: `num_threads` reads at once, each with at most `_WINDOW` fetches of about `_WINDOW_BYTES` under way; a fixed
number of slabs, peers and sends per owner.
UCX has no authentication and the token travels in clear: it listens on one configured address and uses that address's
device only; off loopback it belongs on a trusted network.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from common.base.errors import Leg, PeerLost, Unsupported
from common.transport import wire
from common.transport.address import Address, literal
from common.transport.base import TOO_LARGE, Endpoint, Read
from common.transport.movers import Movers
from common.transport.region import Region
from common.transport.segments import Segments
from common.transport.ucx_binding import UcxWorker
from common.transport.ucx_reader import Fetch
from common.transport.ucx_slabs import Slabs
from common.transport.ucx_thread import UcxThread

_WINDOW = 16
_WINDOW_BYTES = 8 * 1024 * 1024
_MAX_QUARANTINED = 16


@dataclass(slots=True, frozen=True)
class UcxConfig:
    """Which device to use and how much to take on.

    Attributes:
        host: address to listen on.
        port: 0 lets the kernel choose.
        advertise_host: what peers connect to; empty means `host`.
        devices: UCX device list, such as "mlx5_0:1,eth0"; empty means the interface that has `host`.
        num_threads: reads that run at once.
        slab_bytes: largest extent this driver carries; memory is touched only as far as extents reach.
        library: path or soname of libucp; empty finds one (see `ucx_library.load_library`).
        options: further UCX settings, by name without prefix. Put-rendezvous is the default: over TCP the receiving
            side reads straight into the slab (2 instead of 11 wake-ups per 360 KiB).
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise_host: str = ""
    devices: str = ""
    num_threads: int = 4
    slab_bytes: int = 8 * 1024 * 1024
    library: str = ""
    options: dict[str, str] = field(default_factory=lambda: {"RNDV_SCHEME": "put_zcopy"})


class UcxTransport:
    """The `ucx` driver; see `common.transport.base.Transport`."""

    name = "ucx"

    def __init__(
        self,
        host_id: str,
        incarnation: int,
        config: UcxConfig | None = None,
        between_chunks: Callable[[], None] | None = None,
    ) -> None:
        """`between_chunks` is called on the owner's UCX thread while sends are under way: a failpoint for tests."""
        self._config = config or UcxConfig()
        self._host_id = host_id
        self._incarnation = incarnation
        self._between_chunks = between_chunks
        self._token = secrets.token_bytes(wire.TOKEN_BYTES)
        self._segments = Segments(incarnation)
        num_slabs = self._config.num_threads * _WINDOW + _MAX_QUARANTINED
        self._slabs = Slabs(num_slabs, self._config.slab_bytes, _MAX_QUARANTINED)
        self._movers = Movers("ucx", self._config.num_threads)
        self._thread: UcxThread | None = None
        self._address: Address | None = None

    @property
    def num_quarantined_slabs(self) -> int:
        """Slabs that wait for UCX to let go of them."""
        return self._slabs.num_quarantined

    async def start(self) -> None:
        """Load UCX and listen. Raises Unsupported without the library, the device or the address."""
        await asyncio.to_thread(self._start)

    def register(self, region: Region) -> int:
        """Lend a region; returns its segment id."""
        return self._segments.add(region)

    def endpoint(self) -> Endpoint:
        """The listener's address and the token to read from it."""
        assert self._address is not None, "not started"
        return Endpoint(self.name, self._host_id, self._incarnation, self._address.pack())

    async def read(self, peer: Endpoint, reads: Sequence[Read], deadline_s: float) -> None:
        """See `Transport.read`. Raises Unsupported for an extent that is larger than a slab."""
        assert self._thread is not None, "not started"
        wire.check_reads(reads)
        address = Address.unpack(peer.descriptor)
        if any(read.source.length > self._slabs.slab_bytes for read in reads):
            message = f"ucx carries extents of at most {self._slabs.slab_bytes} bytes"
            raise Unsupported(message, reason=TOO_LARGE, leg=Leg.TRANSFER)
        if reads:
            await self._movers.run(_FetchJob(self._thread, self._slabs, peer.incarnation, address, reads), deadline_s)

    async def close_peer(self, peer: Endpoint) -> None:
        """Close the endpoint to a peer."""
        assert self._thread is not None, "not started"
        address, reader = Address.unpack(peer.descriptor), self._thread.reader
        self._thread.submit(partial(reader.drop, address))

    async def close(self) -> None:
        """End reads, endpoints and threads."""
        await self._movers.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)

    def _start(self) -> None:
        try:
            host = literal(self._config.host)
            advertised = literal(self._config.advertise_host or self._config.host)
        except OSError as error:
            raise Unsupported(f"ucx transport: no address {self._config.host}: {error}") from error
        devices = self._config.devices or _device_of(host)
        _check_devices(devices)
        worker = UcxWorker({"NET_DEVICES": devices, **self._config.options}, self._config.library)
        thread = UcxThread(worker, self._segments, self._slabs, (self._token, self._incarnation), self._between_chunks)
        try:
            port = thread.owner.listen(host, self._config.port)
        except Unsupported:
            thread.stop()
            raise
        self._address = Address(advertised, port, self._token)
        self._thread = thread
        thread.start()


class _FetchJob:
    """One batch of extents from one peer: keeps a window of fetches under way, verifies and copies what landed."""

    def __init__(
        self, thread: UcxThread, slabs: Slabs, incarnation: int, address: Address, reads: Sequence[Read]
    ) -> None:
        self._thread = thread
        self._slabs = slabs
        self._incarnation = incarnation
        self._address = address
        self._waiting = deque(reads)
        self._window = max(2, min(_WINDOW, _WINDOW_BYTES // max(read.source.length for read in reads)))
        self._under_way: dict[Fetch, Read] = {}
        self._ended: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()  # at most a window of fetches
        self._aborted = False

    def run(self) -> None:
        """Fetch, verify and copy every extent. Raises the errors of `Transport.read`."""
        try:
            self._fill_window()
            while self._under_way:
                self._land(self._ended.get())
                self._fill_window()
        finally:
            self._abandon_all()

    def abort(self) -> None:
        """Wake the thread, whether it waits for a slab or for a fetch."""
        self._aborted = True
        self._ended.put(None)
        self._slabs.wake()

    def _fill_window(self) -> None:
        while self._waiting and len(self._under_way) < self._window:
            slab = self._slabs.take(lambda: not self._aborted, wait=not self._under_way)
            if slab is None:
                return
            read = self._waiting.popleft()
            fetch = Fetch(self._address, self._incarnation, read.source, slab, self._ended.put)
            self._under_way[fetch] = read
            self._thread.submit(partial(self._thread.reader.begin, fetch))

    def _land(self, fetch: Fetch | None) -> None:
        """Take one ended fetch: bytes enter the target only after they are verified."""
        if fetch is None or self._aborted:
            raise PeerLost("the read was aborted", leg=Leg.TRANSFER)
        if fetch.error is not None:
            raise fetch.error
        landed = fetch.slab.view[: fetch.source.length]
        wire.verify(fetch.source, landed)
        np.copyto(np.frombuffer(self._under_way[fetch].target, np.uint8), np.frombuffer(landed, np.uint8))
        del self._under_way[fetch]
        self._slabs.give(fetch.slab)

    def _abandon_all(self) -> None:
        """Leave what is still under way to the UCX thread, slabs included."""
        now = time.monotonic()
        for fetch in self._under_way:
            self._thread.submit(partial(self._thread.reader.abandon, fetch, now))
        self._under_way.clear()


def _check_devices(devices: str) -> None:
    """UCX ignores devices that it does not find and goes on without. Raises Unsupported for such a one."""
    there = {"all", *psutil.net_if_addrs(), *(entry.name for entry in Path("/sys/class/infiniband").glob("*"))}
    for device in devices.split(","):
        if device.split(":")[0] not in there:
            raise Unsupported(f"ucx transport: there is no network device {device!r}")


def _device_of(host: str) -> str:
    """The network interface that has an address; "all" for a wildcard. Raises Unsupported."""
    if host in {"0.0.0.0", "::"}:
        return "all"
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            return name
    raise Unsupported(f"ucx transport: no network interface has the address {host}")
