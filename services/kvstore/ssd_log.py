"""The SSD log: the objects of one node in append-only files on a local disk, right after whatever ended the process.

::

    SsdLog ── Owner        the directory is ours (ssd_owner)
      ├── Appender         who is new, is there room, when to answer (ssd_append)
      ├── Records          read, write, copy, remove (ssd_records)
      │     ├── Index      key -> place; live and dead records per file (ssd_index, pure)
      │     ├── Tail       the file that grows (ssd_tail)
      │     └── Durable    what is on the medium (ssd_durable)
      └── Reclaim          cap, compaction, dropping (ssd_reclaim)

Bytes are laid out in ssd_format, read back at the start by ssd_rebuild and ssd_recovery, moved by ssd_disk.

Calls block and may come from any thread; `has`, `size`, `touch`, `keys` and `stats` never wait for the device. Objects
are written once: equal keys mean equal bytes. An append that answered STORED survives the process; it survives the
machine once it is synced. A damaged record is never served. Knows nothing of leases, DRAM, the network or clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from common.base.clock import Clock, monotonic
from common.base.errors import BlockCorrupt, InvalidRequest, Leg, Unavailable
from common.cache.l3 import BlockKey, PutState
from services.kvstore.ssd_append import Appender, Committer, Object
from services.kvstore.ssd_disk import Disk, OsDisk
from services.kvstore.ssd_durable import Durable
from services.kvstore.ssd_format import BLOCK_BYTES, ENTRY_BYTES, record_bytes
from services.kvstore.ssd_options import MIN_CAPACITY_BYTES, SsdOptions, SsdStats
from services.kvstore.ssd_owner import Owner, new_store_id, read_store_id, unusable, write_store_id
from services.kvstore.ssd_rebuild import find_store_id, rebuild
from services.kvstore.ssd_reclaim import Reclaim
from services.kvstore.ssd_records import Records
from services.kvstore.ssd_tail import Tail, TailStart


class SsdLog:
    """See the module; `open` makes one."""

    def __init__(
        self,
        disk: Disk,
        store_id: int,
        capacity_bytes: int,
        options: SsdOptions,
        *,
        on_drop: Callable[[list[BlockKey]], None] = lambda _keys: None,
        clock: Clock = monotonic,
    ) -> None:
        """Read what is on a disk that is this log's alone; see `open`.

        Raises:
            OSError: a file cannot be opened or repaired.
        """
        file_bytes = max(2 * BLOCK_BYTES, min(options.file_bytes, capacity_bytes // 8))
        self._disk = disk
        self._capacity_bytes = capacity_bytes
        self._on_drop = on_drop
        self._owner: Owner | None = None
        self._found = rebuild(disk, store_id, max_bad_bytes=capacity_bytes // 8)
        start = TailStart(store_id, file_bytes, self._found.next_number, self._found.next_sequence)
        self._durable = Durable(disk, start.next_sequence - 1, self._forget)
        self._tail = Tail(disk, self._durable, start, self._note_size)
        self._records = Records(disk, store_id, self._found.index, self._tail, self._durable)
        self._reclaim = Reclaim(
            self._records, self._tail, capacity_bytes - self._found.bad_bytes, file_bytes, disk.path
        )
        self._committer = Committer(self._durable, options, clock)
        self._appender = Appender(self._records, self._reclaim, self._tail, self._committer)
        if self._found.active is not None:
            self._tail.adopt(self._found.active)

    @classmethod
    def open(
        cls,
        path: str | Path,
        capacity_bytes: int,
        options: SsdOptions | None = None,
        on_drop: Callable[[list[BlockKey]], None] = lambda _keys: None,
    ) -> SsdLog:
        """Open the log in a directory, which is made if need be.

        Args:
            path: the directory; what is not a log file of this store is left alone.
            capacity_bytes: cap on the log files together.
            options: see there.
            on_drop: told, in the thread that did it and without locks, which objects the log gave up by itself: for
                want of space, damaged, or never known to be synced. Any may have been appended again before: ask `has`.

        Raises:
            Unavailable: in use by another process (reason ssd_in_use, the message names it), or not usable.
            InvalidRequest: the cap is too small.
        """
        if capacity_bytes < MIN_CAPACITY_BYTES:
            raise InvalidRequest(f"an SSD log of {capacity_bytes} bytes is too small", leg=Leg.STORE)
        path = Path(path)
        owner = Owner.acquire(path)
        try:
            disk = OsDisk(str(path))
            try:
                store_id = read_store_id(path)
                if store_id is None:
                    store_id = find_store_id(disk) or new_store_id()
                    write_store_id(path, store_id)
                log = cls(disk, store_id, capacity_bytes, options or SsdOptions(), on_drop=on_drop)
            except BaseException:
                disk.close()
                raise
        except BaseException as error:
            owner.release()
            if isinstance(error, OSError):
                raise unusable(path, error) from error
            raise
        log._owner = owner
        return log

    def append(self, key: BlockKey, header: bytes | memoryview, payload: memoryview) -> PutState:
        """As `append_many` for one."""
        return self.append_many([(key, header, payload)])[0]

    def append_many(self, objects: Sequence[Object]) -> list[PutState]:
        """Store objects: (key, HEADER_BYTES bytes of header, contiguous payload). Payloads must not change meanwhile.

        Returns:
            Per object: STORED; PRESENT (one of this length is there; nothing was written); NO_SPACE; ERROR (a fault of
            the disk: it may be there, but never in part).
        """
        states = self._appender.append(objects)
        self._tell_dropped()
        return states

    def read(self, key: BlockKey, header: memoryview, payload: memoryview) -> bool:
        """Read an object into a header of HEADER_BYTES bytes and a contiguous payload of its exact length.

        Returns:
            False when there is none of this length; then, and after an error, the targets are undefined.

        Raises:
            BlockCorrupt: the record is damaged or the disk cannot read it; it is forgotten.
            Unavailable: the file cannot be opened.
        """
        try:
            location = self._records.read(key, header, payload)
        except BlockCorrupt:
            self._tell_dropped()
            raise
        if location is not None:
            location.used = True
        return location is not None

    def size(self, key: BlockKey) -> int | None:
        """Payload bytes of an object, `None` when it is not there."""
        location = self._records.find(key)
        return location.payload_bytes if location is not None else None

    def has(self, key: BlockKey) -> bool:
        """Whether an object is there."""
        return self._records.find(key) is not None

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Objects were used elsewhere (in DRAM): they shall be dropped later than others."""
        for key in keys:
            location = self._records.find(key)
            if location is not None:
                location.used = True

    def keys(self) -> Iterator[tuple[BlockKey, int]]:
        """(key, payload bytes) of every object that is there now, in no order."""
        with self._records.lock:
            found = [(key, location.payload_bytes) for key, location in self._records.index.items()]
        return iter(found)

    def remove(self, keys: Iterable[BlockKey]) -> int:
        """Remove objects for good; returns how many there were.

        Raises:
            Unavailable: they are gone, but the disk did not take it down: some may be back after a restart.
        """
        wanted = list(keys)
        return self._removing(lambda: self._records.remove(wanted), len(wanted))

    def remove_namespace(self, namespace: bytes) -> int:
        """As `remove`, for all objects of a namespace."""
        return self._removing(lambda: self._records.remove_namespace(namespace), 1)

    def compact(self, max_bytes: int) -> int:
        """Reclaim some space ahead of need; to be called now and then when there is little else to do.

        Returns:
            Bytes written again (at most about `max_bytes`) and given back; 0 when there is nothing worth doing.

        Raises:
            Unavailable: the disk failed.
        """
        try:
            done = self._reclaim.step(max_bytes)
            self._committer.commit(0)
        except OSError as error:
            raise _failed(error) from error
        finally:
            self._tell_dropped()
        return done

    def sync(self) -> None:
        """Return when everything that was appended or removed before is on the medium.

        Raises:
            Unavailable: some of it may not be, and may never be.
        """
        try:
            self._committer.sync()
        except OSError as error:
            self._tell_dropped()
            raise _failed(error) from error

    def stats(self) -> SsdStats:
        """See `SsdStats`."""
        records, found = self._records, self._found
        with records.lock:
            index = records.index
            return SsdStats(
                objects=index.num_objects,
                payload_bytes=index.payload_bytes,
                disk_bytes=index.disk_bytes,
                capacity_bytes=self._capacity_bytes,
                files=len(index.files),
                appended_bytes=self._appender.appended_bytes,
                copied_bytes=records.copied_bytes,
                dropped_objects=self._reclaim.num_dropped,
                corrupt_records=records.num_corrupt,
                syncs=self._durable.num_syncs,
                damaged_ranges=found.damaged_ranges,
                torn_bytes=found.torn_bytes,
                quarantined_files=found.quarantined_files,
                foreign_files=found.foreign_files,
            )

    def close(self) -> None:
        """Sync and give the directory back; idempotent. Later appends answer ERROR, later reads raise.

        Raises:
            Unavailable: the last appends may not be on the medium; the log is closed all the same.
        """
        with self._records.appending:
            try:
                self.sync()
            finally:
                self._tail.close()
                self._durable.close()
                self._disk.close()
                if self._owner is not None:
                    self._owner.release()

    def _removing(self, remove: Callable[[], int], num_entries: int) -> int:
        try:
            with self._records.appending:
                with contextlib.suppress(OSError, Unavailable):  # The removal counts more than the cap.
                    self._reclaim.make_room(min(record_bytes(num_entries * ENTRY_BYTES), self._capacity_bytes // 8))
                removed = remove()
            self._committer.commit(None)
        except OSError as error:
            raise _failed(error) from error
        finally:
            self._tell_dropped()
        return removed

    def _tell_dropped(self) -> None:
        dropped = self._records.take_given_up()
        if dropped:
            self._on_drop(dropped)

    def _forget(self, doomed: range) -> None:
        """Records may never be on the medium: forget them, so that who puts the objects again writes new ones."""
        self._records.forget(doomed)

    def _note_size(self, number: int, disk_bytes: int) -> None:
        with self._records.lock:
            self._records.index.set_size(number, disk_bytes)


def _failed(error: OSError) -> Unavailable:
    return Unavailable(f"the SSD log's disk failed: {error.strerror or error}", reason="ssd_failed", leg=Leg.STORE)
