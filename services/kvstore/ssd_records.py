"""Objects of the SSD log: find, read, write, copy and remove them; retire a log file without losing one.

Two locks. `appending` makes writers one line: whoever holds it decides what the log says next. The index has a lock of
its own, held for a moment, so that lookups never wait for the device; it is taken inside `appending`, never around it.
Readers hold neither while they read: a file that is unlinked meanwhile stays readable to who has it open, and who comes
too late finds the object at its new place.

Invariants: what `read` returns has been compared with what was written, by checksum, key and place. A record's only
copy is not given up before its successor, and every removal that still matters, is on the medium.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterable, Sequence

from common.base.errors import BlockCorrupt, Leg, Unavailable
from common.base.logging import get_logger
from common.cache.l3 import HEADER_BYTES, BlockKey
from common.transport.checksum import checksum
from services.kvstore.ssd_disk import Disk
from services.kvstore.ssd_durable import Durable
from services.kvstore.ssd_format import HEAD_BYTES, Entry, Head, Kind, Place, pack_entries, parse_head
from services.kvstore.ssd_index import Index, Location
from services.kvstore.ssd_tail import Tail, file_name

_NO_KEY = BlockKey(b"", b"", 0)
_NO_HEADER = bytes(HEADER_BYTES)
_MAX_MOVES = 16
"""How often an object may be moved by compaction while one read looks for it."""
_REMOVALS_PER_RECORD = 1024
_RECORD_FAULTS = frozenset({errno.EIO, errno.EUCLEAN, errno.ENODATA, errno.EILSEQ})
"""What a device says that cannot give these bytes; other errors are no fault of the record."""


class Records:
    """See the module.

    Attributes:
        appending: held by whoever writes.
        lock: of the index.
        index: where everything is.
        num_corrupt: records that turned out damaged when they were read.
        copied_bytes: payload bytes written again.
    """

    def __init__(self, disk: Disk, store_id: int, index: Index, tail: Tail, durable: Durable) -> None:
        """Everything is the caller's, and used from here alone from now on."""
        self.appending = threading.RLock()
        self.lock = threading.Lock()
        self.index = index
        self.num_corrupt = 0
        self.copied_bytes = 0
        self._given_up: list[BlockKey] = []
        self._disk = disk
        self._store_id = store_id
        self._tail = tail
        self._durable = durable

    def take_given_up(self) -> list[BlockKey]:
        """Keys whose objects the log gave up by itself since the last call."""
        with self.lock:
            taken, self._given_up = self._given_up, []
            return taken

    def find(self, key: BlockKey) -> Location | None:
        """Where the object is now."""
        with self.lock:
            return self.index.find(key)

    def read(self, key: BlockKey, header: memoryview, payload: memoryview) -> Location | None:
        """Read an object of exactly the payload's length into the targets; `None` when it is not there.

        Raises:
            BlockCorrupt: the record is damaged or unreadable; it is forgotten. The targets are undefined.
            Unavailable: the file could not be opened for another reason.
        """
        for _ in range(_MAX_MOVES):
            location = self.find(key)
            if location is None or location.payload_bytes != payload.nbytes:
                return None
            try:
                head = self._read_at(key, location, payload)
            except FileNotFoundError:
                if self.find(key) is location:
                    self._forget(key, location, "its file is gone")
                continue
            if head is None:
                self._forget(key, location, "it is damaged")
            else:
                header[:] = head.header
                return location
        raise Unavailable("the object moves faster than it can be read", leg=Leg.STORE)

    def write(self, key: BlockKey, header: bytes | memoryview, payload: memoryview, payload_sum: int) -> Location:
        """Append an object and make it the one of its key; `appending` is held.

        Raises:
            OSError: nothing has changed.
        """
        sequence = self._tail.take_sequence()
        head = Head(Kind.OBJECT, key, sequence, bytes(header), payload.nbytes, payload_sum)
        location = self._tail.write(head, payload)
        with self.lock:
            self.index.add(key, location)
        return location

    def copy(self, key: BlockKey, location: Location, used: bool) -> bool:
        """Write an object again at the end of the log, unless it is no longer at `location` or damaged.

        Raises:
            OSError: nothing has changed.
        """
        payload = memoryview(bytearray(location.payload_bytes))
        header = memoryview(bytearray(HEADER_BYTES))
        try:
            if self.read(key, header, payload) is not location:
                return False
        except BlockCorrupt:
            return False
        with self.appending:
            if self.find(key) is not location:
                return False
            self.write(key, header, payload, checksum(payload)).used = used
            self.copied_bytes += payload.nbytes
            return True

    def remove(self, keys: Iterable[BlockKey]) -> int:
        """Remove objects, for the time after a restart too; returns how many there were.

        Raises:
            OSError: they are gone, but some may be back after a restart.
        """
        with self.appending:
            with self.lock:
                known = [key for key in dict.fromkeys(keys) if self.index.is_on_disk(key)]
                removed = sum([self.index.remove(key) for key in known])
            self._write_removals([(Kind.REMOVED, key) for key in known])
            return removed

    def remove_namespace(self, namespace: bytes) -> int:
        """As `remove`, for all objects of a namespace."""
        with self.appending:
            with self.lock:
                if not self.index.has_namespace(namespace):
                    return 0
                removed = sum([self.index.remove(key) for key in self.index.keys_of(namespace)])
            self._write_removals([(Kind.REMOVED_NAMESPACE, BlockKey(namespace, b"", 0))])
            return removed

    def forget(self, sequences: range) -> None:
        """Objects of these records are not there any more; after a restart they may be."""
        with self.lock:
            lost = [key for key, location in self.index.items() if location.sequence in sequences]
            for key in lost:
                self.index.remove(key)
            self._given_up += lost

    def retire(self, number: int) -> int:
        """Drop a file that does not grow and what is still in it; returns how many objects. `appending` is held.

        Raises:
            OSError: the file is still there, perhaps without objects.
        """
        assert number != self._tail.active_number, f"log file {number} still grows"
        with self.lock:
            if number not in self.index.files:
                return 0
            dropped = list(self.index.files[number].live)
            for key in dropped:
                self.index.remove(key)
            self._given_up += dropped
            carried = self.index.removals_to_carry(number)
        self._write_entries(carried)
        self._durable.sync()
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(file_name(number))
        self._disk.sync_names()
        with self.lock:
            self.index.purge(number)
        return len(dropped)

    def _read_at(self, key: BlockKey, location: Location, payload: memoryview) -> Head | None:
        """Read the record at a place; `None` when it is not what it should be."""
        packed = memoryview(bytearray(HEAD_BYTES))
        try:
            with contextlib.closing(self._disk.open(file_name(location.number))) as file:
                num_bytes = file.read([packed, payload], location.offset)
        except OSError as error:
            if error.errno in _RECORD_FAULTS:
                return None
            if error.errno == errno.ENOENT:
                raise
            raise Unavailable(f"an object cannot be read from the SSD log: {error}", leg=Leg.STORE) from error
        head = parse_head(packed, Place(self._store_id, location.number), location.offset)
        if head is None or num_bytes != HEAD_BYTES + payload.nbytes:
            return None
        same = (head.kind, head.key, head.sequence) == (Kind.OBJECT, key, location.sequence)
        return head if same and checksum(payload) == head.payload_sum else None

    def _forget(self, key: BlockKey, location: Location, why: str) -> None:
        """Remove a damaged record, if it still is the object, and say so."""
        with self.appending:
            if self.find(key) is not location:
                return
            self.num_corrupt += 1
            with self.lock:
                self._given_up.append(key)
            get_logger().warning("a record of the SSD log is forgotten", file=file_name(location.number), why=why)
            try:
                self.remove([key])
            except OSError as error:
                get_logger().warning("that it is forgotten cannot be written down", error=str(error))
        raise BlockCorrupt(f"an object of the SSD log was lost: {why}", leg=Leg.STORE)

    def _write_removals(self, removed: Sequence[tuple[Kind, BlockKey]]) -> None:
        for first in range(0, len(removed), _REMOVALS_PER_RECORD):
            sequence = self._tail.take_sequence()
            chunk = removed[first : first + _REMOVALS_PER_RECORD]
            self._write_entries([Entry(kind, key, sequence) for kind, key in chunk], sequence)

    def _write_entries(self, entries: Sequence[Entry], sequence: int = 0) -> None:
        """Append removal records; a sequence number is taken for each unless one is given for the only one."""
        for first in range(0, len(entries), _REMOVALS_PER_RECORD):
            chunk = entries[first : first + _REMOVALS_PER_RECORD]
            payload = pack_entries(chunk)
            number = sequence or self._tail.take_sequence()
            head = Head(Kind.REMOVALS, _NO_KEY, number, _NO_HEADER, len(payload), checksum(payload))
            location = self._tail.write(head, payload, chunk)
            with self.lock:
                self.index.files[location.number].removals += chunk
