"""The drivers one process has, and which of them carries a read: the one place where callers meet the transport.

For every read the first driver in order of preference is taken that runs here, that the peer offers, and that has not
said Unsupported for this peer; `shm` only when both sides are on the same host. A driver to which only this read's
extents are too large is asked again for the next. An error other than Unsupported is the caller's: a lost peer is not
tried again through another door.

All drivers are told of the same regions in the same order, so a region has one segment id, whatever driver reads it.
It does not know requests, keys or leases, nor how metrics are exported: it counts, others publish.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.base.errors import Leg, Unsupported
from common.transport.base import DRIVER_NAMES, TOO_LARGE, Endpoint, Read, Transport
from common.transport.region import Region
from common.transport.shm import ShmTransport
from common.transport.tcp import TcpTransport
from common.transport.tcp_server import TcpConfig
from common.transport.ucx import UcxConfig, UcxTransport

_MAX_REFUSALS = 4096


@dataclass(slots=True)
class DriverCounters:
    """What one driver has done since start; `seconds` sums the time of all reads, failed ones included."""

    reads: int = 0
    bytes: int = 0
    errors: int = 0
    seconds: float = 0.0


@dataclass(slots=True, frozen=True)
class TransportConfig:
    """Which drivers to run, best first, and how each is set up."""

    drivers: tuple[str, ...] = DRIVER_NAMES
    tcp: TcpConfig = field(default_factory=TcpConfig)
    ucx: UcxConfig = field(default_factory=UcxConfig)


def host_id() -> str:
    """Names this boot of this host and the namespaces that shm needs to share (sockets' names, users)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.stat('/proc/self/ns/user').st_ino}"


def make_drivers(config: TransportConfig, host: str, incarnation: int) -> list[Transport]:
    """The configured drivers, none of them started. Raises Unsupported for a name that no driver has."""
    drivers: list[Transport] = []
    for name in config.drivers:
        match name:
            case "shm":
                drivers.append(ShmTransport(host, incarnation))
            case "ucx":
                drivers.append(UcxTransport(host, incarnation, config.ucx))
            case "tcp":
                drivers.append(TcpTransport(host, incarnation, config.tcp))
            case _:
                raise Unsupported(f"no transport driver is called {name!r}; there are {', '.join(DRIVER_NAMES)}")
    return drivers


class TransportSet:
    """All drivers of a process, used from one asyncio loop.

    Attributes:
        counters: by driver name.
        missing: why a configured driver does not run here, by name; filled by `start`.
    """

    def __init__(self, drivers: Sequence[Transport]) -> None:
        """`drivers` are not started yet and become this object's; best first."""
        self._drivers = list(drivers)
        self._started = False
        self._refusals: set[Endpoint] = set()
        self.counters = {driver.name: DriverCounters() for driver in drivers}
        self.missing: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """The drivers in use, best first."""
        return [driver.name for driver in self._drivers]

    async def start(self) -> None:
        """Start every driver that this machine can run. Raises Unsupported when there is none."""
        for driver in list(self._drivers):
            try:
                await driver.start()
            except Unsupported as error:
                self.missing[driver.name] = error.message
                self._drivers.remove(driver)
                await driver.close()
        if not self._drivers:
            raise Unsupported(f"no transport driver runs here: {'; '.join(self.missing.values())}")
        self._started = True

    def register(self, region: Region) -> int:
        """Lend a region through every driver; returns its segment id. The region must outlive this object."""
        segments = {driver.register(region) for driver in self._drivers}
        assert len(segments) == 1, segments
        return segments.pop()

    def endpoints(self) -> list[Endpoint]:
        """What peers need to read from here; valid once started."""
        assert self._started, "not started"
        return [driver.endpoint() for driver in self._drivers]

    async def read(self, peer: Sequence[Endpoint], reads: Sequence[Read], deadline_s: float) -> None:
        """Read through the best common driver; see `Transport.read`.

        Args:
            peer: the peer's endpoints, one per driver.
            reads: what to copy; all or an error.
            deadline_s: seconds from now.

        Raises:
            Unsupported: no driver is common to both sides.
            PandoError: see `Transport.read`.
        """
        ends_at = time.monotonic() + deadline_s
        for driver, endpoint in self._common(peer):
            try:
                await self._counted(driver, endpoint, reads, ends_at - time.monotonic())
            except Unsupported as error:
                if error.reason == TOO_LARGE:
                    continue
                if len(self._refusals) >= _MAX_REFUSALS:
                    self._refusals.clear()
                self._refusals.add(endpoint)
            else:
                return
        offered = ", ".join(endpoint.driver for endpoint in peer) or "nothing"
        raise Unsupported(f"no common transport: here {', '.join(self.names)}; peer {offered}", leg=Leg.TRANSFER)

    async def close_peer(self, peer: Sequence[Endpoint]) -> None:
        """Drop what is held for a peer; unknown peers are fine."""
        self._refusals.difference_update(peer)
        for driver in self._drivers:
            for endpoint in peer:
                if endpoint.driver == driver.name:
                    await driver.close_peer(endpoint)

    async def close(self) -> None:
        """Stop all drivers; running reads fail with PeerLost."""
        for driver in self._drivers:
            await driver.close()

    def _common(self, peer: Sequence[Endpoint]) -> list[tuple[Transport, Endpoint]]:
        offered = {endpoint.driver: endpoint for endpoint in peer if endpoint not in self._refusals}
        return [(driver, offered[driver.name]) for driver in self._drivers if driver.name in offered]

    async def _counted(self, driver: Transport, peer: Endpoint, reads: Sequence[Read], deadline_s: float) -> None:
        counters = self.counters[driver.name]
        began_at = time.monotonic()
        counters.reads += 1
        try:
            await driver.read(peer, reads, deadline_s)
        except BaseException:
            counters.errors += 1
            raise
        else:
            counters.bytes += sum(read.source.length for read in reads)
        finally:
            counters.seconds += time.monotonic() - began_at
