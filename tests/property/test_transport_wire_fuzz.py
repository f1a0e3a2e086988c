"""Bytes from strangers give values in range or a typed error, never anything else."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from common.base.errors import PandoError
from common.transport import wire
from common.transport.address import Address
from common.transport.base import Extent

TOKEN = bytes(16)
U64 = st.integers(0, 2**64 - 1)
EXTENTS = st.builds(Extent, U64, st.integers(0, 2**32 - 1), U64, U64, U64, st.just(0))


@given(st.binary(max_size=200), U64)
def test_any_bytes_are_refused_or_in_range(data: bytes, incarnation: int) -> None:
    with contextlib.suppress(PandoError):
        assert 0 < wire.unpack_head(data, TOKEN, incarnation) <= wire.MAX_EXTENTS_PER_READ
    with contextlib.suppress(PandoError):
        assert len(wire.unpack_wants(data, 3)) == 3
    with contextlib.suppress(PandoError):
        assert Address.unpack(data).port > 0
    with contextlib.suppress(PandoError):
        wire.raise_for(int.from_bytes(data[:4], "little"))


@given(st.lists(EXTENTS, min_size=1, max_size=20), U64, st.binary(min_size=16, max_size=16))
def test_requests_round_trip(extents: list[Extent], incarnation: int, token: bytes) -> None:
    request = wire.pack_request(token, incarnation, extents)
    count = wire.unpack_head(request[: wire.HEAD_BYTES], token, incarnation)
    assert wire.unpack_wants(request[wire.HEAD_BYTES :], count) == extents


@given(st.lists(EXTENTS, min_size=1, max_size=3), st.integers(0, wire.HEAD_BYTES * 8 - 33))
def test_a_flipped_bit_in_the_head_is_refused(extents: list[Extent], bit: int) -> None:
    request = bytearray(wire.pack_request(TOKEN, 5, extents))
    request[bit // 8] ^= 1 << bit % 8
    try:
        wire.unpack_head(request, TOKEN, 5)
    except PandoError:
        return
    raise AssertionError("accepted")
