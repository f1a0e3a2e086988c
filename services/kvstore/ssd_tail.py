"""The end of the SSD log: the one file that grows.

Life of a log file: made -> grows -> sealed (gets its index) -> only read -> unlinked. Before a file is sealed the one
before it is synced. So a restart that syncs the two newest files knows that everything it reads is durable, and a burst
of appends cannot run ahead of the device by more than two files.

After a write that failed the file is cut back; where even that fails, or a sync of it failed, it is left as it is, and
the next record begins a new one. For one thread at a time (the caller's lock); syncs run beside it (`Durable`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.kvstore.ssd_disk import Disk
from services.kvstore.ssd_durable import Durable, OpenFile
from services.kvstore.ssd_format import (
    BLOCK_BYTES,
    HEAD_BYTES,
    ZEROS,
    Entry,
    Head,
    Kind,
    Place,
    footer_bytes,
    pack_entries,
    pack_file_head,
    pack_head,
    pack_trailer,
    record_bytes,
)
from services.kvstore.ssd_index import Location


def file_name(number: int) -> str:
    """Name of a log file."""
    return f"{number:010d}.log"


@dataclass(frozen=True, slots=True)
class TailStart:
    """Where a log goes on.

    Attributes:
        store_id: of the store.
        file_bytes: a file that has a record takes no further one that would make it larger than this.
        next_number: of the next file.
        next_sequence: of the next record.
    """

    store_id: int
    file_bytes: int
    next_number: int
    next_sequence: int


class Tail:
    """See the module."""

    def __init__(self, disk: Disk, durable: Durable, start: TailStart, note_size: Callable[[int, int], None]) -> None:
        """Continue a log; `note_size` is called with a file's number and its size whenever that changed."""
        self._disk = disk
        self._durable = durable
        self._start = start
        self._note_size = note_size
        self._next_number = start.next_number
        self._next_sequence = start.next_sequence
        self._active: OpenFile | None = None

    @property
    def active_number(self) -> int:
        """The file that grows; 0 when there is none."""
        return self._active.place.number if self._active is not None else 0

    def take_sequence(self) -> int:
        """A sequence number for the record that is written next."""
        self._next_sequence += 1
        return self._next_sequence - 1

    def adopt(self, active: OpenFile) -> None:
        """Go on with a file that was there; everything in it must be on the medium."""
        assert self._active is None, "only before the first write"
        self._active = active

    def write(self, head: Head, payload: bytes | memoryview, removals: Sequence[Entry] = ()) -> Location:
        """Append one record with a sequence number just taken; `removals` are those that the payload holds.

        Raises:
            OSError: nothing was appended.
        """
        total = record_bytes(head.payload_bytes)
        active = self._file_for(total + footer_bytes(max(1, len(removals))))
        offset = active.position
        sources = [pack_head(head, active.place, offset), payload]
        if padding := total - HEAD_BYTES - head.payload_bytes:
            sources.append(ZEROS[:padding])
        try:
            active.file.write(sources, offset)
        except OSError:
            self._cut_back(active)
            raise
        active.position += total
        made = removals or [Entry(Kind.OBJECT, head.key, head.sequence, offset, head.payload_bytes)]
        active.index += pack_entries(made)
        self._durable.written(active, head.sequence)
        self._note_size(active.place.number, active.final_bytes)
        return Location(active.place.number, offset, head.payload_bytes, head.sequence)

    def seal(self) -> None:
        """End the file that grows, if there is one; the next record begins a new one.

        Raises:
            OSError: the file before could not be synced; nothing was sealed.
        """
        active = self._active
        if active is None:
            return
        if self._durable.has_left_files:
            self._durable.sync(only_left=True)
        index = bytes(active.index)
        try:
            active.file.write([index, pack_trailer(index, active.place)], active.position)
        except OSError:  # Without an index the next start reads the records one by one.
            with contextlib.suppress(OSError):
                active.file.truncate(active.position)
        self._leave(active)

    def close(self) -> None:
        """Give the file that grows back; idempotent."""
        if self._active is not None:
            self._active.file.close()
            self._active = None

    def _file_for(self, num_bytes: int) -> OpenFile:
        """The file that takes the next record, which adds so many bytes."""
        active = self._active
        if active is not None and active.failed:
            self._leave(active)
        elif active is not None:
            fits = active.position + len(active.index) + num_bytes <= self._start.file_bytes
            if fits or active.position == BLOCK_BYTES:
                return active
            self.seal()
        return self._begin()

    def _begin(self) -> OpenFile:
        """Make the next file."""
        place = Place(self._start.store_id, self._next_number)
        self._next_number += 1
        name = file_name(place.number)
        file = self._disk.open(name, create=True)
        self._durable.names_changed()
        try:
            file.write([pack_file_head(place)], 0)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._disk.unlink(name)
            raise
        self._active = OpenFile(place, file, BLOCK_BYTES, bytearray())
        self._note_size(place.number, self._active.final_bytes)
        return self._active

    def _cut_back(self, active: OpenFile) -> None:
        """Undo a write that failed, or leave the file alone from now on."""
        try:
            active.file.truncate(active.position)
        except OSError:
            self._leave(active)

    def _leave(self, active: OpenFile) -> None:
        self._active = None
        self._durable.leave(active)
        self._note_size(active.place.number, active.final_bytes)
