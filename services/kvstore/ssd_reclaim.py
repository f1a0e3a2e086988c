"""Keeps the SSD log within its cap, and gives the space of dead records back.

Two ways to get space, both by whole files, always in this order:

* *Compaction* loses nothing: the file with the least in it, if that is at most half a file, has its live records
  written again at the end of the log and is unlinked. It pays at most one byte written per byte won.
* *Dropping* the oldest file, when there is no such file and space is needed: objects that were used since they were
  written (or since this last happened to them) are written again, up to half a file; the rest is dropped. That is first
  in, first out with a second chance: close to least recently used, for one bit an object.

One file's worth of the cap is kept free for what is written again. A medium that is full before the cap is reached
lowers the cap to what the log has now, until the next file is begun.
"""

from __future__ import annotations

from common.base.logging import get_logger
from services.kvstore.ssd_disk import FULL
from services.kvstore.ssd_format import BLOCK_BYTES, footer_bytes
from services.kvstore.ssd_records import Records
from services.kvstore.ssd_tail import Tail

_MEDIUM_FULL = "the disk is full before the log has reached its cap: the oldest objects go"


class Reclaim:
    """See the module.

    Attributes:
        num_dropped: objects given up for want of space.
    """

    def __init__(self, records: Records, tail: Tail, capacity_bytes: int, file_bytes: int, path: str) -> None:
        """The records are shared with whoever reads and writes them; `path` is for people."""
        self.num_dropped = 0
        self._records = records
        self._tail = tail
        self._capacity_bytes = capacity_bytes
        self._file_bytes = file_bytes
        self._path = path
        self._medium_limit: int | None = None

    def medium_is_full(self) -> None:
        """A write found no room: what is there now is all that there will be, until `medium_has_room`."""
        if self._medium_limit is None:
            used, cap = self._disk_bytes(), self._capacity_bytes
            get_logger().warning(_MEDIUM_FULL, path=self._path, used_bytes=used, cap_bytes=cap)
        self._medium_limit = self._disk_bytes()

    def medium_has_room(self) -> None:
        """A file was begun: the cap is what was configured."""
        self._medium_limit = None

    def make_room(self, num_bytes: int) -> bool:
        """Get room for a record of so many bytes, whatever has to go; `appending` is held. False when that is hopeless.

        Raises:
            OSError: files cannot be read, written or removed.
        """
        needed = num_bytes + BLOCK_BYTES + footer_bytes(1) + self._file_bytes
        if num_bytes > self._capacity_bytes // 4:
            return False
        for _ in range(len(self._records.index.files) + 2):
            if self._disk_bytes() + needed <= self._limit():
                return True
            if not self._gain():
                break
        self._medium_limit = None  # There is nothing left to give up: the medium itself must say whether it is full.
        return self._disk_bytes() + needed <= self._limit()

    def step(self, max_bytes: int) -> int:
        """Do some work ahead of need: at most about `max_bytes` are written again.

        Returns:
            Bytes written again and bytes given back to the medium; 0 when there is nothing worth doing.

        Raises:
            OSError: files cannot be read, written or removed.
        """
        number = self._emptiest()
        if number is not None:
            return self._compact(number, max_bytes)
        oldest = self._oldest()
        if oldest is None or self._disk_bytes() + 3 * self._file_bytes <= self._limit():
            return 0
        return self._drop(oldest, min(max_bytes, self._file_bytes // 2))

    def _gain(self) -> bool:
        """Reclaim one file; False when there is none."""
        number = self._emptiest()
        if number is not None:
            return self._compact(number, self._file_bytes) > 0
        if self._oldest() is None:
            self._tail.seal()
        oldest = self._oldest()
        return oldest is not None and self._drop(oldest, self._file_bytes // 2) > 0

    def _compact(self, number: int, max_bytes: int) -> int:
        copied = self._copy(number, max_bytes, only_used=False)
        records = self._records
        with records.appending:
            with records.lock:
                state = records.index.files.get(number)
                if state is None or state.live:
                    return copied
                size = state.disk_bytes
            records.retire(number)
        return copied + size

    def _drop(self, number: int, max_bytes: int) -> int:
        records = self._records
        copied = 0
        try:
            copied = self._copy(number, max_bytes, only_used=True)
        except OSError as error:
            if error.errno not in FULL:
                raise
        with records.appending:
            with records.lock:
                state = records.index.files.get(number)
                size = state.disk_bytes if state is not None else 0
            self.num_dropped += records.retire(number)
        return copied + size

    def _copy(self, number: int, max_bytes: int, only_used: bool) -> int:
        """Write live records of a file again, in the order of the file; returns payload bytes written."""
        records = self._records
        with records.lock:
            state = records.index.files.get(number)
            if state is None:
                return 0
            found = [(key, records.index.find(key)) for key in state.live]
        places = [(place, key) for key, place in found if place is not None and (place.used or not only_used)]
        copied = 0
        for place, key in sorted(places, key=lambda pair: pair[0].offset):
            if copied + place.payload_bytes > max_bytes and copied:
                break
            if records.copy(key, place, used=place.used and not only_used):
                copied += max(1, place.payload_bytes)
        return copied

    def _sealed(self) -> list[int]:
        """Files that do not grow; the index is locked. A file is active before it is known, so that is asked last."""
        numbers = list(self._records.index.files)
        active = self._tail.active_number
        return [number for number in numbers if number != active]

    def _emptiest(self) -> int | None:
        """The file that compaction would take; `None` when none pays."""
        with self._records.lock:
            occupied = {number: self._records.index.occupied_bytes(number) for number in self._sealed()}
        number = min(occupied, key=lambda one: occupied[one], default=None)
        return number if number is not None and occupied[number] <= self._file_bytes // 2 else None

    def _oldest(self) -> int | None:
        with self._records.lock:
            return min(self._sealed(), default=None)

    def _disk_bytes(self) -> int:
        with self._records.lock:
            return self._records.index.disk_bytes

    def _limit(self) -> int:
        return self._capacity_bytes if self._medium_limit is None else min(self._capacity_bytes, self._medium_limit)
