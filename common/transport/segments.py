"""The regions that one driver lends, by segment id, and the one check of a wanted extent against them.

Segment ids count from 1 in order of registration, so drivers that are told of the same regions in the same order lend
them under the same ids and one `Extent` fits all of them. Used from a driver's threads; registration only adds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from common.base.errors import LeaseLost, Leg, StaleIncarnation
from common.transport.base import Extent
from common.transport.region import Region
from common.transport.wire import invalid


@dataclass(slots=True, frozen=True)
class Lent:
    """A wanted extent that checked out: take the bytes, then `check_generation` before promising anything."""

    region: Region
    index: int
    generation: int
    offset: int
    length: int

    @property
    def data(self) -> memoryview:
        """The bytes, in the region's memory."""
        return self.region.data[self.offset : self.offset + self.length]

    def check_generation(self) -> None:
        """Raise LeaseLost if the owner has reused the extent since it was lent."""
        found = self.region.generation(self.index)
        if found != self.generation:
            raise LeaseLost(f"extent {self.index} is at generation {found}, not {self.generation}", leg=Leg.TRANSFER)


class Segments:
    """What this process lends through one driver."""

    def __init__(self, incarnation: int) -> None:
        """`incarnation` is this process's own."""
        self._incarnation = incarnation
        self._regions: dict[int, Region] = {}
        self._lock = threading.Lock()

    def add(self, region: Region) -> int:
        """Lend a region; returns its segment id."""
        region.stamp(self._incarnation)
        with self._lock:
            segment = len(self._regions) + 1
            self._regions[segment] = region
        return segment

    def region(self, segment: int) -> Region:
        """The region behind an id. Raises InvalidRequest for an unknown one."""
        region = self._regions.get(segment)
        if region is None:
            raise invalid(f"no segment {segment} is lent here")
        return region

    def lend(self, want: Extent) -> Lent:
        """Check a wanted extent and give access to its bytes.

        Raises:
            StaleIncarnation: it was lent by another life of this process.
            InvalidRequest: unknown segment or a span outside one extent.
            LeaseLost: the extent has been reused.
        """
        if want.incarnation != self._incarnation:
            raise StaleIncarnation("the extent was lent by another incarnation", leg=Leg.TRANSFER)
        region = self.region(want.segment)
        index = region.geometry.extent_of(want.offset, want.length)
        lent = Lent(region, index, want.generation, want.offset, want.length)
        lent.check_generation()
        return lent
