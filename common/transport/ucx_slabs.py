"""Memory of the `ucx` driver's own, where bytes land before they are verified and copied into blocks.

A slab is free, in use by one fetch, or in quarantine: given up by its reader while the library may still write to it.
It leaves quarantine when the library says that the receive has ended. So a block is free the moment a read fails, and
a late byte only ever hits a slab that nobody looks at.

The number of slabs is fixed; pages come into being when first touched. Used from mover threads and the UCX thread.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.base.errors import Leg, Overloaded, PeerLost


@dataclass(slots=True, frozen=True)
class Slab:
    """Room for one extent: `view` for Python, `address` for the library."""

    address: int
    view: memoryview


class Slabs:
    """A fixed pool of slabs.

    Attributes:
        slab_bytes: size of each, and so of the largest extent that fits.
    """

    def __init__(self, num_slabs: int, slab_bytes: int, max_quarantined: int) -> None:
        """`max_quarantined`: with more than that given up, reads are refused rather than left to wait."""
        self.slab_bytes = slab_bytes
        self._max_quarantined = max_quarantined
        self._num_quarantined = 0
        self._changed = threading.Condition()
        memory = np.frombuffer(mmap.mmap(-1, num_slabs * slab_bytes), np.uint8)
        self._free = [
            Slab(memory.ctypes.data + start, memory[start : start + slab_bytes].data)
            for start in range(0, num_slabs * slab_bytes, slab_bytes)
        ]

    @property
    def num_quarantined(self) -> int:
        """Slabs that the library may still write to though nobody waits for them."""
        return self._num_quarantined

    def take(self, is_wanted: Callable[[], bool], wait: bool) -> Slab | None:
        """A free slab; None if there is none and `wait` is false.

        Raises:
            PeerLost: `is_wanted` became false (see `wake`).
            Overloaded: too many slabs are in quarantine.
        """
        with self._changed:
            while not self._free:
                if not is_wanted():
                    raise PeerLost("the read was aborted", leg=Leg.TRANSFER)
                if self._num_quarantined > self._max_quarantined:
                    raise Overloaded(f"{self._num_quarantined} slabs are in quarantine", leg=Leg.TRANSFER)
                if not wait:
                    return None
                self._changed.wait()
            return self._free.pop()

    def give(self, slab: Slab) -> None:
        """Take back a slab that the library does not know any more."""
        with self._changed:
            self._free.append(slab)
            self._changed.notify()

    def quarantine(self) -> None:
        """Count a slab whose reader has gone while its receive has not ended."""
        with self._changed:
            self._num_quarantined += 1
            self._changed.notify_all()

    def release(self, slab: Slab) -> None:
        """Take back a slab out of quarantine: its receive has ended."""
        with self._changed:
            self._num_quarantined -= 1
            self._free.append(slab)
            self._changed.notify_all()

    def wake(self) -> None:
        """Make those who wait in `take` ask again whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()
