"""A region handed out in runs of pages: what a store node keeps objects in, and what a client stages puts in.

::

    region  | page | page | page | page | page | page | ...      spanning: see common.transport.region
              `---- run of 3 ---'   `- run of 2 -'

Best fit over free runs, which are joined with their neighbours when they are given back: blocks of one size, the usual
case, leave no gaps. A run's generation is that of its first page; it is bumped when the run is freed, before anybody
can write there again, so a reader that was late is told so by its transport.

Used from one thread. It does not know what the runs hold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from common.transport.region import Region


@dataclass(slots=True, frozen=True)
class Run:
    """Some pages of an arena, owned by whoever allocated them until they are freed.

    Attributes:
        first: page.
        num_pages: of them.
        length: bytes that were asked for.
    """

    first: int
    num_pages: int
    length: int


class FreeRuns:
    """Which pages are free. All operations cost O(log of the number of different run lengths), or less."""

    def __init__(self, num_pages: int) -> None:
        self.num_free = 0
        self._length_at: dict[int, int] = {}
        self._start_before: dict[int, int] = {}
        self._starts: dict[int, set[int]] = {}
        self._lengths: list[int] = []
        self.free(0, num_pages)

    @property
    def largest(self) -> int:
        """Pages of the longest free run; 0 for none."""
        return self._lengths[-1] if self._lengths else 0

    def take(self, num_pages: int) -> int | None:
        """The first page of a run, from the shortest free one that is long enough; None when there is none."""
        assert num_pages > 0, num_pages
        place = bisect_left(self._lengths, num_pages)
        if place == len(self._lengths):
            return None
        length = self._lengths[place]
        first = self._starts[length].pop()
        self._forget(first, length)
        if length > num_pages:
            self._add(first + num_pages, length - num_pages)
        self.num_free -= num_pages
        return first

    def free(self, first: int, num_pages: int) -> None:
        """Give pages back and join them with free neighbours."""
        self.num_free += num_pages
        before = self._start_before.get(first)
        if before is not None:
            length = self._length_at[before]
            self._forget(before, length)
            first, num_pages = before, num_pages + length
        after = self._length_at.get(first + num_pages)
        if after is not None:
            self._forget(first + num_pages, after)
            num_pages += after
        self._add(first, num_pages)

    def _add(self, first: int, length: int) -> None:
        self._length_at[first] = length
        self._start_before[first + length] = first
        starts = self._starts.get(length)
        if starts is None:
            self._starts[length] = {first}
            insort(self._lengths, length)
        else:
            starts.add(first)

    def _forget(self, first: int, length: int) -> None:
        del self._length_at[first], self._start_before[first + length]
        starts = self._starts[length]
        starts.discard(first)
        if not starts:
            del self._starts[length]
            del self._lengths[bisect_left(self._lengths, length)]


class Arena:
    """A spanning region and its free pages.

    Attributes:
        region: registered with the transports that lend from it; owned by the arena.
        page_bytes, num_pages: sizes.
    """

    def __init__(self, capacity_bytes: int, page_bytes: int) -> None:
        """Reserve address space for at least one page.

        Raises:
            OSError: the kernel has no room for the mapping.
        """
        self.page_bytes = page_bytes
        self.num_pages = max(1, capacity_bytes // page_bytes)
        self.region = Region.create(self.num_pages, page_bytes, spanning=True)
        self._free = FreeRuns(self.num_pages)

    @property
    def num_free_pages(self) -> int:
        """Pages that nobody has."""
        return self._free.num_free

    @property
    def used_bytes(self) -> int:
        """Bytes of pages that somebody has."""
        return (self.num_pages - self._free.num_free) * self.page_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.page_bytes

    def pages_for(self, length: int) -> int:
        """Pages that so many bytes take."""
        return -(-length // self.page_bytes)

    def allocate(self, length: int) -> Run | None:
        """Pages in one run for `length` bytes (at least one); None when no free run is long enough."""
        num_pages = self.pages_for(length)
        first = self._free.take(num_pages)
        return None if first is None else Run(first, num_pages, length)

    def free(self, run: Run) -> None:
        """Take pages back; whoever still reads there finds out."""
        self.region.bump_generation(run.first)
        self._free.free(run.first, run.num_pages)

    def offset(self, run: Run) -> int:
        """Where a run begins in the region's data, in bytes."""
        return run.first * self.page_bytes

    def generation(self, run: Run) -> int:
        """Of a run, as it is now."""
        return self.region.generation(run.first)

    def view(self, run: Run) -> memoryview:
        """The bytes of a run, exactly as many as were asked for; writable."""
        offset = run.first * self.page_bytes
        return self.region.data[offset : offset + run.length]

    def close(self) -> None:
        """Give the memory back."""
        self.region.close()
