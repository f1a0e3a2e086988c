"""The header: every bit of it and of the payload counts."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.cache.header import Damage, inspect, make_header, promised_checksum, refit_checksum
from common.cache.l3 import HEADER_BYTES, BlockKey
from common.transport.checksum import checksum
from common.transport.tag import Tagger

KEY = BlockKey(b"n" * 32, b"h" * 32, 7)
KEYED, BARE = Tagger(b"k" * 32), Tagger(None)
PAYLOAD = bytes(range(256)) * 4


def look(header: bytes | bytearray, payload: bytes | bytearray, key: BlockKey = KEY, tagger: Tagger = KEYED) -> object:
    return inspect(bytes(header), key, memoryview(payload), tagger)


@pytest.mark.parametrize("tagger", [KEYED, BARE])
def test_whole_blocks_pass(tagger: Tagger) -> None:
    header = make_header(KEY, memoryview(PAYLOAD), tagger)
    assert len(header) == HEADER_BYTES
    assert look(header, PAYLOAD, tagger=tagger) is None


def test_is_what_it_was() -> None:
    """A golden vector: stores outlive builds."""
    assert make_header(KEY, memoryview(PAYLOAD), KEYED) == bytes.fromhex(
        "504b56420100010007000000000000000004000000000000228d398429f970a8"
        "1c56ec7484c020f78bb7c9e579e6de890a86441a0daa259711610cc49a7050d3"
    )


@pytest.mark.parametrize("tagger", [KEYED, BARE])
def test_every_bit_of_the_header_counts(tagger: Tagger) -> None:
    header = make_header(KEY, memoryview(PAYLOAD), tagger)
    for bit in range(8 * HEADER_BYTES):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        assert look(flipped, PAYLOAD, tagger=tagger) is not None, f"bit {bit}"


@given(st.binary(min_size=1, max_size=300), st.data())
def test_every_bit_of_the_payload_counts(payload: bytes, data: st.DataObject) -> None:
    header = make_header(KEY, memoryview(payload), KEYED)
    flipped = bytearray(payload)
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    assert look(header, flipped) is Damage.CHECKSUM


def test_only_the_tag_finds_a_forged_checksum() -> None:
    for tagger, found in ((KEYED, Damage.TAG), (BARE, None)):
        header = bytearray(make_header(KEY, memoryview(PAYLOAD), tagger))
        forged = b"\xff" + PAYLOAD[1:]
        refit_checksum(header, forged)
        assert look(header, forged, tagger=tagger) is found


@pytest.mark.parametrize(
    "other",
    [
        BlockKey(b"m" * 32, KEY.prefix_hash, 7),
        BlockKey(KEY.namespace, b"g" * 32, 7),
        BlockKey(KEY.namespace, b"h" * 32),
    ],
)
def test_another_blocks_object_is_found_without_a_key_too(other: BlockKey) -> None:
    for tagger in (KEYED, BARE):
        assert look(make_header(other, memoryview(PAYLOAD), tagger), PAYLOAD, tagger=tagger) is Damage.KEY


def test_says_what_is_wrong_first() -> None:
    header = make_header(KEY, memoryview(PAYLOAD), KEYED)
    assert look(bytes(HEADER_BYTES), PAYLOAD) is Damage.HEADER
    assert look(header, PAYLOAD[:-1]) is Damage.LENGTH
    assert look(header, PAYLOAD, tagger=BARE) is Damage.HEADER
    assert look(header, PAYLOAD, tagger=Tagger(b"l" * 32)) is Damage.TAG
    newer = header[:4] + struct.pack("<H", 2) + header[6:]
    assert look(newer, PAYLOAD) is Damage.HEADER


def test_believes_who_has_hashed_the_payload_but_not_without_the_tag() -> None:
    other = bytes(len(PAYLOAD))
    for tagger, without_reading in ((BARE, None), (KEYED, Damage.TAG)):
        header = make_header(KEY, memoryview(PAYLOAD), tagger)
        right = checksum(PAYLOAD)
        assert promised_checksum(header) == right
        assert inspect(header, KEY, memoryview(PAYLOAD), tagger, right) is None
        assert inspect(header, KEY, memoryview(PAYLOAD), tagger, right ^ 1) is Damage.CHECKSUM
        assert inspect(header, KEY, memoryview(other), tagger, right) is without_reading
