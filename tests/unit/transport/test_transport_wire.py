"""Records round-trip, every status stands for one error, and nonsense is refused before a byte moves."""

from __future__ import annotations

import pytest

from common.base.errors import (
    BlockCorrupt,
    DeadlineExceeded,
    InvalidRequest,
    LeaseLost,
    Leg,
    Overloaded,
    PandoError,
    PeerLost,
    StaleIncarnation,
    Unsupported,
)
from common.transport import wire
from common.transport.address import Address
from common.transport.base import Extent, Read
from common.transport.checksum import Running, checksum

TOKEN = bytes(range(16))
EXTENT = Extent(incarnation=7, segment=1, offset=4096, length=100, generation=3, checksum=0)


def test_requests_round_trip() -> None:
    extents = [EXTENT, Extent(2**64 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1, 0)]
    request = wire.pack_request(TOKEN, 7, extents)
    count = wire.unpack_head(request[: wire.HEAD_BYTES], TOKEN, 7)
    assert wire.unpack_wants(request[wire.HEAD_BYTES :], count) == extents


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (InvalidRequest, wire.Status.INVALID),
        (StaleIncarnation, wire.Status.STALE),
        (LeaseLost, wire.Status.LEASE_LOST),
        (Overloaded, wire.Status.OVERLOADED),
        (Unsupported, wire.Status.UNSUPPORTED),
        (PeerLost, wire.Status.GONE),
    ],
)
def test_statuses_carry_errors_across(kind: type[PandoError], status: wire.Status) -> None:
    assert wire.status_of(kind("x")) == status
    with pytest.raises(kind) as caught:
        wire.raise_for(status)
    assert caught.value.leg == Leg.TRANSFER


def test_ok_passes_and_unknown_statuses_are_the_peers_fault() -> None:
    wire.raise_for(0)
    assert wire.status_of(DeadlineExceeded("x")) == wire.Status.GONE
    with pytest.raises(PeerLost):
        wire.raise_for(12345)


def test_a_request_for_another_life_is_stale_whatever_its_token() -> None:
    with pytest.raises(StaleIncarnation):
        wire.unpack_head(wire.pack_request(bytes(16), 8, [EXTENT]), TOKEN, 7)


def test_wrong_token_magic_count_and_size_are_invalid() -> None:
    good = wire.pack_request(TOKEN, 7, [EXTENT])
    wrong = [
        wire.pack_request(bytes(16), 7, [EXTENT]),
        b"X" + good[1:],
        good[: wire.HEAD_BYTES - 1],
        wire.pack_request(TOKEN, 7, []),
        wire.pack_request(TOKEN, 7, [EXTENT] * (wire.MAX_EXTENTS_PER_READ + 1)),
    ]
    for request in wrong:
        with pytest.raises(InvalidRequest):
            wire.unpack_head(request, TOKEN, 7)
    with pytest.raises(InvalidRequest):
        wire.unpack_wants(good[wire.HEAD_BYTES :], 2)


@pytest.mark.parametrize("field", ["incarnation", "segment", "offset", "length", "generation"])
@pytest.mark.parametrize("value", [-1, 2**64])
def test_fields_out_of_range_are_invalid(field: str, value: int) -> None:
    values = {name: getattr(EXTENT, name) for name in Extent.__slots__} | {field: value}
    with pytest.raises(InvalidRequest):
        wire.check_reads([Read(Extent(**values), memoryview(bytearray(100)))])


def test_targets_must_be_writable_contiguous_and_of_the_right_size() -> None:
    wire.check_reads([Read(EXTENT, memoryview(bytearray(100)))])
    for target in (memoryview(bytes(100)), memoryview(bytearray(99)), memoryview(bytearray(200))[::2]):
        with pytest.raises(InvalidRequest):
            wire.check_reads([Read(EXTENT, target)])
    with pytest.raises(InvalidRequest):
        wire.check_reads([Read(EXTENT, memoryview(bytearray(100)))] * (wire.MAX_EXTENTS_PER_READ + 1))


def test_verify_compares_with_the_promise() -> None:
    data = bytearray(b"block")
    promised = Extent(7, 1, 0, 5, 0, checksum(data))
    wire.verify(promised, memoryview(data))
    data[2] ^= 1
    with pytest.raises(BlockCorrupt):
        wire.verify(promised, memoryview(data))


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "::1", "2001:db8::7"])
def test_addresses_round_trip(host: str) -> None:
    assert Address.unpack(Address(host, 65_535, TOKEN).pack()) == Address(host, 65_535, TOKEN)


@pytest.mark.parametrize("host", ["localhost", "example.org", "", "127.0.0.1/x", "999.1.1.1", "\u0661.1.1.1"])
def test_descriptors_never_name_a_host_to_look_up(host: str) -> None:
    with pytest.raises(InvalidRequest):
        Address.unpack(Address(host, 80, TOKEN).pack())


def test_descriptors_of_port_zero_or_another_version_are_invalid() -> None:
    with pytest.raises(InvalidRequest):
        Address.unpack(Address("127.0.0.1", 0, TOKEN).pack())
    with pytest.raises(InvalidRequest):
        Address.unpack(b"\x09" + Address("127.0.0.1", 80, TOKEN).pack()[1:])


@pytest.mark.parametrize("step", [1, 7, 1000, 4096])
def test_a_running_checksum_is_that_of_the_whole(step: int) -> None:
    data = bytes(range(256)) * 16
    running = Running()
    for start in range(0, len(data), step):
        running.add(data[start : start + step])
    assert running.value == checksum(data)
    running.add(b"x")
    assert running.value != checksum(data)
