"""Which driver carries a read, what is tried next, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from common.base.errors import PandoError, PeerLost, Unsupported
from common.transport.base import TOO_LARGE, Endpoint, Extent, Read
from common.transport.region import Region
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers
from common.transport.shm import ShmTransport

READS = [Read(Extent(1, 1, 0, 10, 0, 0), memoryview(bytearray(10)))] * 3


class FakeTransport:
    """Carries nothing; remembers what it was asked."""

    def __init__(self, name: str, error: PandoError | None = None, start_error: PandoError | None = None) -> None:
        self.name = name
        self.error = error
        self.deadlines: list[float] = []
        self.num_regions = 0
        self.closed_peers: list[Endpoint] = []
        self.is_closed = False
        self._start_error = start_error

    def register(self, region: Region) -> int:
        self.num_regions += 1
        return self.num_regions

    def endpoint(self) -> Endpoint:
        return endpoint(self.name)

    async def start(self) -> None:
        if self._start_error:
            raise self._start_error

    async def read(self, peer: Endpoint, reads: Sequence[Read], deadline_s: float) -> None:
        self.deadlines.append(deadline_s)
        await asyncio.sleep(0.01)
        if self.error:
            raise self.error

    async def close_peer(self, peer: Endpoint) -> None:
        self.closed_peers.append(peer)

    async def close(self) -> None:
        self.is_closed = True


def endpoint(name: str) -> Endpoint:
    """A peer's endpoint for a driver."""
    return Endpoint(name, "host", 1, b"")


async def started(*drivers: FakeTransport) -> TransportSet:
    """A started set of fakes."""
    transports = TransportSet(drivers)
    await transports.start()
    return transports


async def test_our_order_decides_not_the_peers() -> None:
    first, second = FakeTransport("a"), FakeTransport("b")
    transports = await started(first, second)
    await transports.read([endpoint("b"), endpoint("a")], READS, 5.0)
    assert (len(first.deadlines), len(second.deadlines)) == (1, 0)
    await transports.read([endpoint("b")], READS, 5.0)
    assert (len(first.deadlines), len(second.deadlines)) == (1, 1)


async def test_extents_that_are_too_large_for_a_driver_do_not_rule_it_out() -> None:
    first, second = FakeTransport("a", Unsupported("too large", reason=TOO_LARGE)), FakeTransport("b")
    transports = await started(first, second)
    peer = [endpoint("a"), endpoint("b")]
    await transports.read(peer, READS, 5.0)
    first.error = None
    await transports.read(peer, READS, 5.0)
    assert (len(first.deadlines), len(second.deadlines)) == (2, 1)


async def test_unsupported_for_a_pair_moves_on_within_the_deadline_and_is_remembered() -> None:
    first, second = FakeTransport("a", Unsupported("other host")), FakeTransport("b")
    transports = await started(first, second)
    peer = [endpoint("a"), endpoint("b")]
    await transports.read(peer, READS, 5.0)
    await transports.read(peer, READS, 5.0)
    assert len(first.deadlines) == 1
    assert len(second.deadlines) == 2
    assert second.deadlines[0] < 5.0 - 0.005
    await transports.close_peer(peer)
    assert first.closed_peers == [endpoint("a")]
    await transports.read(peer, READS, 5.0)
    assert len(first.deadlines) == 2  # a closed peer may come back another


async def test_a_lost_peer_is_not_tried_through_another_door() -> None:
    first, second = FakeTransport("a", PeerLost("dead")), FakeTransport("b")
    transports = await started(first, second)
    with pytest.raises(PeerLost):
        await transports.read([endpoint("a"), endpoint("b")], READS, 5.0)
    assert second.deadlines == []


async def test_no_common_driver_is_unsupported_and_says_what_there_is() -> None:
    transports = await started(FakeTransport("a"))
    with pytest.raises(Unsupported, match="here a; peer b, c"):
        await transports.read([endpoint("b"), endpoint("c")], READS, 5.0)
    with pytest.raises(Unsupported, match="peer nothing"):
        await transports.read([], READS, 5.0)


async def test_counts_reads_bytes_seconds_and_errors_per_driver() -> None:
    good, bad = FakeTransport("good"), FakeTransport("bad", PeerLost("x"))
    transports = await started(good, bad)
    await transports.read([endpoint("good")], READS, 5.0)
    with pytest.raises(PeerLost):
        await transports.read([endpoint("bad")], READS, 5.0)
    counted = transports.counters["good"]
    assert (counted.reads, counted.bytes, counted.errors) == (1, 30, 0)
    assert counted.seconds > 0.005
    counted = transports.counters["bad"]
    assert (counted.reads, counted.bytes, counted.errors) == (1, 0, 1)


async def test_a_driver_that_cannot_start_is_left_out_with_its_reason() -> None:
    missing, there = FakeTransport("a", start_error=Unsupported("no library")), FakeTransport("b")
    transports = await started(missing, there)
    assert transports.missing == {"a": "no library"}
    assert transports.names == ["b"]
    assert missing.is_closed
    assert transports.endpoints() == [endpoint("b")]
    await transports.close()
    assert there.is_closed


async def test_no_driver_at_all_stops_the_start() -> None:
    with pytest.raises(Unsupported, match="no library"):
        await started(FakeTransport("a", start_error=Unsupported("no library")))


async def test_one_segment_id_fits_all_drivers() -> None:
    transports = await started(FakeTransport("a"), FakeTransport("b"))
    with Region.create(1, 8) as region:
        assert [transports.register(region), transports.register(region)] == [1, 2]


def test_makes_the_configured_drivers_in_order() -> None:
    assert [driver.name for driver in make_drivers(TransportConfig(("tcp", "shm")), "h", 1)] == ["tcp", "shm"]
    with pytest.raises(Unsupported, match="carrier-pigeon"):
        make_drivers(TransportConfig(("carrier-pigeon",)), "h", 1)


async def test_shm_refuses_other_hosts() -> None:
    driver = ShmTransport(host_id(), 1)
    with pytest.raises(Unsupported):
        await driver.read(Endpoint("shm", "another host", 1, b""), READS, 1.0)
    await driver.close()
