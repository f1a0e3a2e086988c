"""What is in one log file that was there at the start, whatever happened to it.

A sealed file that is known to be on the medium is read through its index: heads and payloads are not looked at until
somebody reads them. Any other file is read record by record, payloads included: what is damaged between good records is
passed over and counted, what follows the last good record is cut off.

Invariants: nothing that was not checked is reported; no bytes make it raise, loop or allocate more than the file has.
A record that cannot be read counts as damaged. Raises OSError only when the file cannot be opened or repaired.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.transport.checksum import checksum
from services.kvstore.ssd_disk import DiskFile
from services.kvstore.ssd_format import (
    BLOCK_BYTES,
    HEAD_BYTES,
    TRAILER_BYTES,
    Entry,
    Head,
    Kind,
    Place,
    pack_entries,
    pack_trailer,
    parse_entries,
    parse_file_head,
    parse_head,
    parse_trailer,
    record_bytes,
)

MAX_FILE_BYTES = 1 << 32
"""No log file is larger: a record of the largest size and an index come to less."""


@dataclass(slots=True)
class Found:
    """What a log file holds.

    Attributes:
        entries: objects and removals, in the order of the file.
        data_end: where the records end.
        sealed: it has its index.
        head_sound: its first block says that it is this file.
        damaged_ranges: runs of blocks between good records that are none.
        torn_bytes: what followed the last good record.
    """

    entries: list[Entry] = field(default_factory=list)
    data_end: int = BLOCK_BYTES
    sealed: bool = False
    head_sound: bool = False
    damaged_ranges: int = 0
    torn_bytes: int = 0


def is_foreign(file: DiskFile, place: Place) -> bool:
    """Whether a file says that it is another store's, or another file than its name says; or is far too large."""
    if file.size() > MAX_FILE_BYTES:
        return True
    told = parse_file_head(_read(file, 0, BLOCK_BYTES))
    return told is not None and told != place


def inspect(file: DiskFile, place: Place, believe_index: bool) -> Found:
    """Read a file; changes nothing. Its index may be on the medium though not all of its records are."""
    size = file.size()
    head_sound = parse_file_head(_read(file, 0, BLOCK_BYTES)) == place
    indexed = _read_index(file, place, size)
    if indexed is not None and believe_index:
        return Found(*indexed, sealed=True, head_sound=head_sound)
    found = _scan(file, place, size)
    found.head_sound = head_sound
    if indexed == (found.entries, found.data_end):
        found.sealed, found.torn_bytes = True, 0
    return found


def cut_off(file: DiskFile, found: Found) -> None:
    """Remove what follows the last good record of a file that has no index.

    Raises:
        OSError: the file cannot be changed.
    """
    if file.size() != found.data_end:
        file.truncate(found.data_end)


def add_index(file: DiskFile, place: Place, found: Found) -> None:
    """Seal a file that was cut off.

    Raises:
        OSError: the file cannot be changed.
    """
    index = pack_entries(found.entries)
    file.write([index, pack_trailer(index, place)], found.data_end)
    found.sealed = True


def _read(file: DiskFile, offset: int, num_bytes: int) -> memoryview:
    """So many bytes or what there is; nothing when they cannot be read."""
    target = memoryview(bytearray(num_bytes))
    try:
        return target[: file.read([target], offset)]
    except OSError:
        return target[:0]


def _read_index(file: DiskFile, place: Place, size: int) -> tuple[list[Entry], int] | None:
    if size < BLOCK_BYTES + TRAILER_BYTES:
        return None
    trailer = parse_trailer(_read(file, size - TRAILER_BYTES, TRAILER_BYTES), place, size)
    if trailer is None:
        return None
    data_end, entries_sum = trailer
    data = _read(file, data_end, size - TRAILER_BYTES - data_end)
    if checksum(data) != entries_sum:
        return None
    return list(parse_entries(data, data_end)), data_end


def _scan(file: DiskFile, place: Place, size: int) -> Found:
    """Go from record to record; where there is none, from block to block."""
    found = Found()
    offset, in_damage = BLOCK_BYTES, False
    while offset + HEAD_BYTES <= size:
        head = parse_head(_read(file, offset, HEAD_BYTES), place, offset)
        end = offset + record_bytes(head.payload_bytes) if head is not None else 0
        if head is None or end > size:
            in_damage, offset = True, offset + BLOCK_BYTES
            continue
        payload = _read(file, offset + HEAD_BYTES, head.payload_bytes)
        if len(payload) == head.payload_bytes and checksum(payload) == head.payload_sum:
            found.entries += _entries_of(head, payload, offset)
            found.damaged_ranges += in_damage
            found.data_end, in_damage = end, False
        else:
            in_damage = True
        offset = end
    found.torn_bytes = max(0, size - found.data_end)
    return found


def _entries_of(head: Head, payload: memoryview, offset: int) -> list[Entry]:
    if head.kind is Kind.OBJECT:
        return [Entry(Kind.OBJECT, head.key, head.sequence, offset, head.payload_bytes)]
    return [entry for entry in parse_entries(payload, 0) if entry.kind is not Kind.OBJECT]
