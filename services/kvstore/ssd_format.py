"""Bytes of a log file of the SSD log: packing and parsing, nothing else.

::

    0            file head: magic, version, store id, file number, checksum          (BLOCK_BYTES)
    BLOCK_BYTES  record: 64 bytes fixed | namespace 64 | prefix hash 64 | object header 64 | payload | zeros
                 record: ...                              each begins on a multiple of BLOCK_BYTES
    data_end     only when sealed: index = one 160-byte entry per object and per removal | trailer 64

A record's head and its payload have a checksum each, so that a scan can skip payloads; the head's covers the payload's.
A head's checksum also covers *where* it is (store id, file number, offset), which is not stored: a record that lies in
another record's payload, in another store's file or at another place is not one.

A removal record's payload is a list of entries that say: every record of this key, or of this namespace, with a lower
sequence number is dead. Sequence numbers come from one counter per store; there are no times in the log.

Invariants: integers are little-endian; what is parsed may be any bytes: an answer is `None` or has been checked against
the bounds given, and nothing is allocated by a length that was read. Knows no files and no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from common.cache.l3 import HEADER_BYTES, BlockKey
from common.transport.checksum import checksum

VERSION = 1
BLOCK_BYTES = 4096
"""Records begin on multiples of this: what was synced never shares a device block with what is written later."""
HEAD_BYTES = 256
MAX_PAYLOAD_BYTES = 1 << 30
MAX_SEQUENCE = 1 << 62
ZEROS = bytes(BLOCK_BYTES)

_NAME_BYTES = 64
_FILE_MAGIC, _RECORD_MAGIC, _TRAILER_MAGIC = b"PANDOLOG", b"PANDOREC", b"PANDOIDX"
_FILE_HEAD = struct.Struct("<8sQHHIQQ")  # magic, checksum, version, reserved, reserved, store id, file number
_FIXED = struct.Struct("<8sQHBBB3xIQQQ12x")  # magic, checksum, version, kind, two lengths, part, sequence, payload, sum
_WHERE = struct.Struct("<QQQ")  # store id, file number, offset
_NAMES = struct.Struct(f"<{_NAME_BYTES}s{_NAME_BYTES}s{HEADER_BYTES}s")
_ENTRY = struct.Struct(f"<BBBxIQQQ{_NAME_BYTES}s{_NAME_BYTES}s")  # kind, two lengths, part, sequence, offset, payload
_TRAILER = struct.Struct("<8sQQQQQ16x")  # magic, checksum, number of entries, entries' checksum, store id, file number
_SUMMED_FROM = 16  # magic and checksum come first everywhere

assert _FIXED.size + _NAMES.size == HEAD_BYTES, "the head's size is part of the format"
ENTRY_BYTES = _ENTRY.size
TRAILER_BYTES = _TRAILER.size


class Kind(IntEnum):
    """What an entry or a record says."""

    OBJECT = 1
    REMOVED = 2
    REMOVED_NAMESPACE = 3
    REMOVALS = 4
    """A record whose payload is entries of the two kinds above; never an entry itself."""


class Entry(NamedTuple):
    """One line of a log file's index.

    Attributes:
        kind: OBJECT, REMOVED or REMOVED_NAMESPACE (then `prefix_hash` is empty).
        key: the object, or what was removed.
        sequence: of the record; for a removal: records with a lower one are dead.
        offset: of the record in its file; 0 for a removal.
        payload_bytes: 0 for a removal.
    """

    kind: Kind
    key: BlockKey
    sequence: int
    offset: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """A record's head that was parsed and verified.

    Attributes:
        kind: OBJECT or REMOVALS.
        key: of the object; all empty for REMOVALS.
        sequence: see `Entry`.
        header: the object's header.
        payload_bytes: 0..MAX_PAYLOAD_BYTES.
        payload_sum: checksum of the payload.
    """

    kind: Kind
    key: BlockKey
    sequence: int
    header: bytes
    payload_bytes: int
    payload_sum: int


@dataclass(frozen=True, slots=True)
class Place:
    """A log file: which store's and which one."""

    store_id: int
    number: int


def record_bytes(payload_bytes: int) -> int:
    """What a record takes in its file, padding included."""
    return -(-(HEAD_BYTES + payload_bytes) // BLOCK_BYTES) * BLOCK_BYTES


def footer_bytes(num_entries: int) -> int:
    """Size of an index of so many entries with its trailer."""
    return num_entries * ENTRY_BYTES + TRAILER_BYTES


def pack_file_head(place: Place) -> bytes:
    """The first block of a log file."""
    rest = _FILE_HEAD.pack(_FILE_MAGIC, 0, VERSION, 0, 0, place.store_id, place.number)[_SUMMED_FROM:]
    return (_FILE_MAGIC + checksum(rest).to_bytes(8, "little") + rest).ljust(BLOCK_BYTES, b"\0")


def parse_file_head(data: bytes | memoryview) -> Place | None:
    """Whose file this is; `None` when the head is damaged, of another version or of something else."""
    if len(data) < _FILE_HEAD.size:
        return None
    magic, total, version, _, _, store_id, number = _FILE_HEAD.unpack_from(data)
    sound = magic == _FILE_MAGIC and version == VERSION and total == checksum(data[_SUMMED_FROM : _FILE_HEAD.size])
    return Place(store_id, number) if sound else None


def pack_head(head: Head, place: Place, offset: int) -> bytes:
    """HEAD_BYTES bytes for a record at `offset` of a file."""
    key = head.key
    lengths = len(key.namespace), len(key.prefix_hash)
    assert max(lengths) <= _NAME_BYTES and 0 <= key.part < 1 << 32, f"a key that no store takes: {key}"
    assert head.payload_bytes <= MAX_PAYLOAD_BYTES and len(head.header) == HEADER_BYTES, f"{head}"
    fixed = (head.kind, *lengths, key.part, head.sequence, head.payload_bytes, head.payload_sum)
    rest = _FIXED.pack(_RECORD_MAGIC, 0, VERSION, *fixed)[_SUMMED_FROM:]
    rest += _NAMES.pack(key.namespace, key.prefix_hash, head.header)
    return _RECORD_MAGIC + _head_sum(rest, place, offset).to_bytes(8, "little") + rest


def parse_head(data: bytes | memoryview, place: Place, offset: int) -> Head | None:
    """The record that begins with `data` at `offset` of a file; `None` when none does."""
    if len(data) < HEAD_BYTES or data[:8] != _RECORD_MAGIC:
        return None
    fixed = _FIXED.unpack_from(data)
    _, total, version, kind, namespace_bytes, prefix_bytes, part, sequence, payload_bytes, payload_sum = fixed
    if version != VERSION or total != _head_sum(bytes(data[_SUMMED_FROM:HEAD_BYTES]), place, offset):
        return None
    if kind not in (Kind.OBJECT, Kind.REMOVALS) or payload_bytes > MAX_PAYLOAD_BYTES or sequence > MAX_SEQUENCE:
        return None
    namespace, prefix_hash, header = _NAMES.unpack_from(data, _FIXED.size)
    key = BlockKey(namespace[:namespace_bytes], prefix_hash[:prefix_bytes], part)
    return Head(Kind(kind), key, sequence, header, payload_bytes, payload_sum)


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """An index or the payload of a removal record."""
    return b"".join(
        _ENTRY.pack(
            entry.kind,
            len(entry.key.namespace),
            len(entry.key.prefix_hash),
            entry.key.part,
            entry.sequence,
            entry.offset,
            entry.payload_bytes,
            entry.key.namespace,
            entry.key.prefix_hash,
        )
        for entry in entries
    )


def parse_entries(data: bytes | memoryview, data_end: int) -> Iterator[Entry]:
    """Entries of an index whose checksum was right; what points outside of [BLOCK_BYTES, data_end) is left out."""
    spaces: dict[bytes, bytes] = {}
    kinds = {kind.value: kind for kind in (Kind.OBJECT, Kind.REMOVED, Kind.REMOVED_NAMESPACE)}
    whole = memoryview(data)[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
    for fields in _ENTRY.iter_unpack(whole):
        number, namespace_bytes, prefix_bytes, part, sequence, offset, payload_bytes, namespace, prefix_hash = fields
        kind = kinds.get(number)
        if kind is None or sequence > MAX_SEQUENCE:
            continue
        if kind is Kind.OBJECT and not _within(offset, payload_bytes, data_end):
            continue
        namespace = namespace[:namespace_bytes]
        key = BlockKey(spaces.setdefault(namespace, namespace), prefix_hash[:prefix_bytes], part)
        yield Entry(kind, key, sequence, offset, payload_bytes)


def pack_trailer(entries: bytes, place: Place) -> bytes:
    """What follows packed entries at the end of a sealed file."""
    num_entries = len(entries) // ENTRY_BYTES
    fields = (num_entries, checksum(entries), place.store_id, place.number)
    rest = _TRAILER.pack(_TRAILER_MAGIC, 0, *fields)[_SUMMED_FROM:]
    return _TRAILER_MAGIC + checksum(rest).to_bytes(8, "little") + rest


def parse_trailer(data: bytes | memoryview, place: Place, file_bytes: int) -> tuple[int, int] | None:
    """The last TRAILER_BYTES bytes of a file of `file_bytes` bytes.

    Returns:
        (where the records end and the index begins, the index's checksum); `None` when there is no sound trailer.
    """
    if len(data) != TRAILER_BYTES or data[:8] != _TRAILER_MAGIC:
        return None
    _, total, num_entries, entries_sum, store_id, number = _TRAILER.unpack(data)
    if total != checksum(data[_SUMMED_FROM:]) or Place(store_id, number) != place:
        return None
    data_end = file_bytes - footer_bytes(num_entries)
    return (data_end, entries_sum) if data_end >= BLOCK_BYTES and data_end % BLOCK_BYTES == 0 else None


def _head_sum(rest: bytes, place: Place, offset: int) -> int:
    return checksum(rest + _WHERE.pack(place.store_id, place.number, offset))


def _within(offset: int, payload_bytes: int, data_end: int) -> bool:
    if offset < BLOCK_BYTES or offset % BLOCK_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        return False
    return offset + record_bytes(payload_bytes) <= data_end
