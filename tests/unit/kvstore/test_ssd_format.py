"""Log file bytes: what is packed comes back, what is anything else is refused, and the layout does not drift."""

from __future__ import annotations

import hashlib

import pytest

from common.cache.l3 import HEADER_BYTES, BlockKey
from common.transport.checksum import checksum
from services.kvstore import ssd_format as fmt
from services.kvstore.ssd_format import Entry, Head, Kind, Place

PLACE = Place(77, 3)
KEY = BlockKey(b"n" * 64, b"prefix", (1 << 32) - 1)
HEAD = Head(Kind.OBJECT, KEY, 12, bytes(range(HEADER_BYTES)), 1000, 99)
ENTRIES = [
    Entry(Kind.OBJECT, KEY, 12, 4096, 1000),
    Entry(Kind.REMOVED, KEY, 13),
    Entry(Kind.REMOVED_NAMESPACE, BlockKey(b"space", b""), 14),
]


def test_what_is_packed_comes_back() -> None:
    assert fmt.parse_head(fmt.pack_head(HEAD, PLACE, 4096), PLACE, 4096) == HEAD
    assert fmt.parse_file_head(fmt.pack_file_head(PLACE)) == PLACE
    assert list(fmt.parse_entries(fmt.pack_entries(ENTRIES), 8192)) == ENTRIES
    packed = fmt.pack_entries(ENTRIES)
    assert fmt.parse_trailer(fmt.pack_trailer(packed, PLACE), PLACE, 8192 + fmt.footer_bytes(3)) == (
        8192,
        checksum(packed),
    )


def test_the_layout_is_the_one_of_version_1() -> None:
    whole = fmt.pack_file_head(PLACE) + fmt.pack_head(HEAD, PLACE, 4096) + fmt.pack_entries(ENTRIES)
    whole += fmt.pack_trailer(fmt.pack_entries(ENTRIES), PLACE)
    assert (fmt.HEAD_BYTES, fmt.ENTRY_BYTES, fmt.TRAILER_BYTES, fmt.BLOCK_BYTES) == (256, 160, 64, 4096)
    assert hashlib.sha256(whole).hexdigest()[:16] == "e89b67ac461b64ca", "a new layout needs a new VERSION"


@pytest.mark.parametrize("at", range(0, 256, 5))
def test_a_flipped_bit_is_no_head(at: int) -> None:
    packed = bytearray(fmt.pack_head(HEAD, PLACE, 4096))
    packed[at] ^= 1
    assert fmt.parse_head(packed, PLACE, 4096) is None


@pytest.mark.parametrize("at", range(0, 40))
def test_a_flipped_bit_is_no_file_head_and_no_trailer(at: int) -> None:
    head, trailer = bytearray(fmt.pack_file_head(PLACE)), bytearray(fmt.pack_trailer(b"", PLACE))
    head[at] ^= 1
    trailer[at] ^= 1
    assert fmt.parse_file_head(head) is None
    assert fmt.parse_trailer(trailer, PLACE, 4096 + 64) is None


@pytest.mark.parametrize(("place", "offset"), [(Place(78, 3), 4096), (Place(77, 4), 4096), (PLACE, 8192)])
def test_a_record_elsewhere_is_none(place: Place, offset: int) -> None:
    """A copy of a record in another store, file or place (inside a payload, say) must not be taken for one."""
    assert fmt.parse_head(fmt.pack_head(HEAD, PLACE, 4096), place, offset) is None


@pytest.mark.parametrize("size", [0, 1, 55, 255])
def test_too_short_is_none(size: int) -> None:
    assert fmt.parse_head(fmt.pack_head(HEAD, PLACE, 4096)[:size], PLACE, 4096) is None
    assert fmt.parse_file_head(fmt.pack_file_head(PLACE)[: min(size, 20)]) is None
    assert fmt.parse_trailer(fmt.pack_trailer(b"", PLACE)[: min(size, 63)], PLACE, 4160) is None


@pytest.mark.parametrize(
    "entry",
    [
        Entry(Kind.OBJECT, KEY, 1, 0, 10),
        Entry(Kind.OBJECT, KEY, 1, 4097, 10),
        Entry(Kind.OBJECT, KEY, 1, 4096, 4096),
        Entry(Kind.OBJECT, KEY, 1, (1 << 64) - 4096, 10),
        Entry(Kind.OBJECT, KEY, 1, 4096, (1 << 64) - 1),
        Entry(Kind.OBJECT, KEY, (1 << 64) - 1, 4096, 10),
    ],
)
def test_entries_that_point_outside_are_left_out(entry: Entry) -> None:
    assert list(fmt.parse_entries(fmt.pack_entries([entry, ENTRIES[1]]), 8192)) == [ENTRIES[1]]


@pytest.mark.parametrize("num_entries", [3, 1 << 40, (1 << 64) - 1])
def test_a_trailer_that_claims_more_than_the_file_has_is_none(num_entries: int) -> None:
    rest = fmt._TRAILER.pack(b"PANDOIDX", 0, num_entries, 0, 77, 3)[16:]
    trailer = b"PANDOIDX" + checksum(rest).to_bytes(8, "little") + rest
    assert fmt.parse_trailer(trailer, PLACE, 4096 + fmt.footer_bytes(2)) is None


@pytest.mark.parametrize("field", [{"payload_bytes": (1 << 64) - 1}, {"sequence": (1 << 64) - 1}])
def test_a_head_with_absurd_numbers_is_none(field: dict[str, int]) -> None:
    numbers = {"sequence": 1, "payload_bytes": 1} | field
    fixed = (fmt.VERSION, Kind.OBJECT, 1, 1, 0, numbers["sequence"], numbers["payload_bytes"], 0)
    rest = fmt._FIXED.pack(b"PANDOREC", 0, *fixed)[16:] + bytes(192)
    packed = b"PANDOREC" + fmt._head_sum(rest, PLACE, 4096).to_bytes(8, "little") + rest
    assert fmt.parse_head(packed, PLACE, 4096) is None


def test_a_key_that_is_too_long_is_a_callers_bug() -> None:
    with pytest.raises(AssertionError):
        fmt.pack_head(Head(Kind.OBJECT, BlockKey(b"n" * 65, b"p"), 1, bytes(HEADER_BYTES), 0, 0), PLACE, 4096)
