"""How full the shared folder is, and who has to go: a size cap kept by several processes that do not talk.

Each process counts the folder now and then and adds what it wrote itself in between. Between two counts it may write a
sixteenth of the free room (at least a 64th of the cap), so with up to 16 workers the folder stays under its cap, and
beyond that or close to it exceeds it by at most a 64th per worker. Over the cap, the blocks that were not used for
longest go, until a tenth of the cap is free; two processes that evict at once remove the same files, which is harmless.

"Used" is the file's modification time: readers touch it (file_store.py). Temporary files that nobody finishes are
removed when they are old. Blocks: call it in threads. Knows no keys and no leases; open files outlive their removal.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable

from common.cache import file_folder
from common.cache.file_folder import Found
from common.cache.l3 import L3Stats

_LOW_WATER = 0.9
_TEMP_MAX_AGE_S = 600.0


class Census:
    """Counts and makes room; shared by the threads of one store.

    Args:
        root: the folder.
        capacity_bytes: the cap over all namespaces, temporary files included.
        wall_clock: seconds since the epoch, to compare with file times.
    """

    def __init__(self, root: str, capacity_bytes: int, wall_clock: Callable[[], float] = time.time) -> None:
        assert capacity_bytes > 0, f"capacity of {capacity_bytes} bytes"
        self._root = root
        self._capacity_bytes = capacity_bytes
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._num_objects = 0
        self._num_bytes = 0
        self._claimed_objects = 0
        self._claimed_bytes = 0
        self._credit_bytes = capacity_bytes / 64

    def stats(self) -> L3Stats:
        """As of the last count, plus what this process did since; takes no lock, so it never waits for a count."""
        num_objects = self._num_objects + self._claimed_objects
        return L3Stats(max(0, num_objects), max(0, self._booked_bytes), self._capacity_bytes)

    def count(self) -> None:
        """Walk the folder; sweeps what crashes left. Writers go on meanwhile; what they write may count twice."""
        before = (self._num_objects, self._num_bytes)
        found = self._walk()
        with self._lock:
            self._num_objects += found.num_objects - before[0]
            self._num_bytes += found.num_bytes - before[1]
            self._renew_credit()

    def claim(self, num_bytes: int) -> bool:
        """Book room for one object, evicting if need be; returns False when that does not help.

        What is claimed counts beside what a walk meets, for the walk may have passed before it was written; `settle`
        ends that. May take as long as two walks of the folder; other writers of this process wait for it.
        """
        with self._lock:
            if num_bytes > self._capacity_bytes:
                return False
            if num_bytes > self._credit_bytes or self._booked_bytes + num_bytes > self._capacity_bytes:
                self._count_and_evict(num_bytes)
            if self._booked_bytes + num_bytes > self._capacity_bytes:
                return False
            self._claim(1, num_bytes)
            self._credit_bytes -= num_bytes
            return True

    def settle(self, num_bytes: int, stored: bool) -> None:
        """An object that was claimed is in the folder now, or will not be."""
        with self._lock:
            self._claim(-1, -num_bytes)
            if stored:
                self._book(1, num_bytes)

    def release(self, num_bytes: int) -> None:
        """An object of the folder is gone."""
        with self._lock:
            self._book(-1, -num_bytes)

    @property
    def _booked_bytes(self) -> int:
        return self._num_bytes + self._claimed_bytes

    def _claim(self, objects: int, num_bytes: int) -> None:
        self._claimed_objects += objects
        self._claimed_bytes += num_bytes

    def _book(self, objects: int, num_bytes: int) -> None:
        self._num_objects += objects
        self._num_bytes += num_bytes

    def _renew_credit(self) -> None:
        free = self._capacity_bytes - self._booked_bytes
        self._credit_bytes = max(free / 16, self._capacity_bytes / 64)

    def _count_and_evict(self, wanted_bytes: int) -> None:
        """Count anew, and remove the longest unused blocks if there is no room for `wanted_bytes`."""
        found = self._walk()
        self._num_objects, self._num_bytes = found.num_objects, found.num_bytes
        if self._booked_bytes + wanted_bytes > self._capacity_bytes:
            goal = min(int(_LOW_WATER * self._capacity_bytes), self._capacity_bytes - wanted_bytes)
            excess_bytes = self._booked_bytes - goal
            self._evict(excess_bytes, found.cut(excess_bytes))
        self._renew_credit()

    def _walk(self) -> _Count:
        count = _Count()
        oldest_temp_s = self._wall_clock() - _TEMP_MAX_AGE_S
        for found in file_folder.walk(self._root):
            if found.is_temp and found.used_s < oldest_temp_s:
                file_folder.remove(found.shard, found.name)
            else:
                count.add(found)
        return count

    def _evict(self, excess_bytes: int, newest_victim_s: float) -> None:
        for found in file_folder.walk(self._root):
            if excess_bytes <= 0:
                return
            if not found.is_temp and found.used_s <= newest_victim_s and file_folder.remove(found.shard, found.name):
                self._book(-1, -found.num_bytes)
                excess_bytes -= found.num_bytes


class _Count:
    """What a walk met: 16 bytes of memory a block, for a folder may hold millions."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._used_s = array("d")
        self._sizes = array("q")

    @property
    def num_objects(self) -> int:
        return len(self._sizes)

    def add(self, found: Found) -> None:
        self.num_bytes += found.num_bytes
        if not found.is_temp:
            self._used_s.append(found.used_s)
            self._sizes.append(found.num_bytes)

    def cut(self, excess_bytes: int) -> float:
        """The time up to which the least recently used blocks sum up to `excess_bytes`."""
        used_s = float("-inf")
        for index in sorted(range(len(self._sizes)), key=self._used_s.__getitem__):
            used_s = self._used_s[index]
            excess_bytes -= self._sizes[index]
            if excess_bytes <= 0:
                break
        return used_s
