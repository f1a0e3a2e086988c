"""Which record of the SSD log is the object of which key, and what each log file still holds: pure bookkeeping.

A record is *live* when it is the object of its key, else *dead*: superseded by a copy, removed, or given up. A removal
is remembered by a removal entry in the file where it was written, and must be carried along for as long as another file
still has a dead record that it kills: else the object would return at the next start.

Invariants: every live key is in the `live` set of exactly the file that its location names; a key is in a file's `dead`
set when that file has a dead record of it. Built from files in any order: the highest sequence number decides.

Knows no files, no bytes and no clock. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from common.cache.l3 import BlockKey
from services.kvstore.ssd_format import ENTRY_BYTES, Entry, Kind, record_bytes


@dataclass(slots=True, eq=False)
class Location:
    """Where an object is.

    Attributes:
        number: of the log file.
        offset: of the record in it.
        payload_bytes: of the object.
        sequence: of the record.
        used: read or touched since it was written or last got its second chance.
    """

    number: int
    offset: int
    payload_bytes: int
    sequence: int
    used: bool = False


@dataclass(slots=True)
class FileState:
    """What one log file holds.

    Attributes:
        disk_bytes: its size, with the index it will get when it is sealed.
        live: keys whose object is in it.
        live_bytes: their records.
        dead: keys of which it has a dead record.
        removals: removal entries in it.
    """

    disk_bytes: int = 0
    live: set[BlockKey] = field(default_factory=set)
    live_bytes: int = 0
    dead: set[BlockKey] = field(default_factory=set)
    removals: list[Entry] = field(default_factory=list)


class Index:
    """See the module."""

    def __init__(self) -> None:
        self.files: dict[int, FileState] = {}
        self.num_objects = 0
        self.payload_bytes = 0
        self.disk_bytes = 0
        self._spaces: dict[bytes, dict[BlockKey, Location]] = {}
        self._num_dead: dict[BlockKey, int] = {}

    def find(self, key: BlockKey) -> Location | None:
        """The object's place."""
        space = self._spaces.get(key.namespace)
        return space.get(key) if space is not None else None

    def items(self) -> Iterator[tuple[BlockKey, Location]]:
        """All objects, in no order; the index must not change meanwhile."""
        for space in self._spaces.values():
            yield from space.items()

    def keys_of(self, namespace: bytes) -> list[BlockKey]:
        """Live keys of a namespace."""
        return list(self._spaces.get(namespace, ()))

    def is_on_disk(self, key: BlockKey) -> bool:
        """Whether any file has a record of it, live or dead."""
        return self.find(key) is not None or key in self._num_dead

    def has_namespace(self, namespace: bytes) -> bool:
        """Whether any file has a record of a namespace, live or dead. Looks at every dead one."""
        return namespace in self._spaces or any(key.namespace == namespace for key in self._num_dead)

    def set_size(self, number: int, disk_bytes: int) -> None:
        """Make a file known, or note that its size has changed."""
        state = self.files.setdefault(number, FileState())
        self.disk_bytes += disk_bytes - state.disk_bytes
        state.disk_bytes = disk_bytes

    def add(self, key: BlockKey, location: Location) -> None:
        """A record was written or found in a known file; it is the object unless a newer one is known."""
        space = self._spaces.setdefault(key.namespace, {})
        before = space.get(key)
        if before is not None:
            if before.sequence > location.sequence:
                self._bury(key, location.number)
                return
            self._take_out(key, before)
        space[key] = location
        state = self.files[location.number]
        state.live.add(key)
        state.live_bytes += record_bytes(location.payload_bytes)
        self.num_objects += 1
        self.payload_bytes += location.payload_bytes

    def remove(self, key: BlockKey) -> bool:
        """Its object is dead from now on; False when there was none."""
        location = self.find(key)
        if location is None:
            return False
        space = self._spaces[key.namespace]
        del space[key]
        if not space:
            del self._spaces[key.namespace]
        self._take_out(key, location)
        return True

    def load(self, number: int, disk_bytes: int, entries: Iterable[Entry]) -> int:
        """Take in a file that was there at the start; returns its highest sequence. When all are in, `settle`."""
        self.set_size(number, disk_bytes)
        removals = self.files[number].removals
        highest = 0
        for entry in entries:
            highest = max(highest, entry.sequence)
            if entry.kind is Kind.OBJECT:
                self.add(entry.key, Location(number, entry.offset, entry.payload_bytes, entry.sequence))
            else:
                removals.append(entry)
        return highest

    def settle(self) -> None:
        """Apply the removals of all loaded files."""
        for state in self.files.values():
            for entry in state.removals:
                whole = entry.kind is Kind.REMOVED_NAMESPACE
                for key in self.keys_of(entry.key.namespace) if whole else (entry.key,):
                    location = self.find(key)
                    if location is not None and location.sequence < entry.sequence:
                        self.remove(key)

    def removals_to_carry(self, number: int) -> list[Entry]:
        """Removal entries of a file that are still needed when the file is gone.

        What they kill has lower sequence numbers, and those grow along the log: it lies in this file or in older ones.
        """
        state = self.files[number]
        if not state.removals:
            return []
        older = [other.dead for one, other in self.files.items() if one < number]
        maybe = {key for key, num_files in self._num_dead.items() if num_files > (key in state.dead)}
        spaces = {key.namespace for dead in older for key in dead}
        return [
            entry
            for entry in state.removals
            if (
                entry.key.namespace in spaces
                if entry.kind is Kind.REMOVED_NAMESPACE
                else entry.key in maybe and any(entry.key in dead for dead in older)
            )
        ]

    def occupied_bytes(self, number: int) -> int:
        """At most what reclaiming a file would have to write again to lose nothing."""
        state = self.files[number]
        return state.live_bytes + len(state.removals) * ENTRY_BYTES

    def purge(self, number: int) -> None:
        """A file is gone for good; it must have no live records."""
        state = self.files.pop(number)
        assert not state.live, f"{len(state.live)} objects of log file {number} would be lost"
        self.disk_bytes -= state.disk_bytes
        for key in state.dead:
            left = self._num_dead[key] - 1
            if left:
                self._num_dead[key] = left
            else:
                del self._num_dead[key]

    def _take_out(self, key: BlockKey, location: Location) -> None:
        """A live record dies."""
        state = self.files[location.number]
        state.live.remove(key)
        state.live_bytes -= record_bytes(location.payload_bytes)
        self.num_objects -= 1
        self.payload_bytes -= location.payload_bytes
        self._bury(key, location.number)

    def _bury(self, key: BlockKey, number: int) -> None:
        dead = self.files[number].dead
        if key not in dead:
            dead.add(key)
            self._num_dead[key] = self._num_dead.get(key, 0) + 1
