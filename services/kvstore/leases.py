"""Who may read what until when: the leases of one node. Pure; time comes as an argument.

A lease pins its objects, so their pages keep their bytes until it is released or expires. Invariant: the pins of all
leases are exactly those that this book has taken and not given back. After the end of a lease its reader is told by
the generation of the pages, not by this book.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.kvstore.memory import Object
from services.kvstore.objects import Objects

_SPARE_ENDS = 1024


@dataclass(slots=True)
class _Lease:
    objects: Sequence[Object]
    ends_s: float


class LeaseBook:
    """The leases over `objects`.

    Args:
        objects: whose objects are pinned.
        first_id: ids count from here; another life of the node shall begin elsewhere.
        max_ttl_s: longest life between two renewals.
        max_leases: more are refused.
    """

    def __init__(self, objects: Objects, first_id: int, max_ttl_s: float, max_leases: int) -> None:
        assert first_id > 0, first_id
        self._objects = objects
        self._next_id = first_id
        self._max_ttl_s = max_ttl_s
        self._max_leases = max_leases
        self._leases: dict[int, _Lease] = {}
        # One entry a lease, at its end or before, and some of leases that were released.
        self._ends: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def ttl_s(self, wanted_s: float) -> float:
        """The life that a lease gets when its owner wants `wanted_s`; 0 means the longest."""
        return min(wanted_s, self._max_ttl_s) if wanted_s > 0 else self._max_ttl_s

    def grant(self, objects: Sequence[Object], now_s: float, ttl_s: float) -> int | None:
        """Pin objects, each as often as it is named; returns the lease's id, None when there are too many leases."""
        if len(self._leases) >= self._max_leases:
            return None
        lease_id = self._next_id
        self._next_id += 1
        self._objects.pin_all(objects)
        self._leases[lease_id] = _Lease(objects, now_s + ttl_s)
        heapq.heappush(self._ends, (now_s + ttl_s, lease_id))
        return lease_id

    def renew(self, lease_id: int, now_s: float, ttl_s: float) -> bool:
        """Let a lease live for `ttl_s` from now; False when it has ended."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        lease.ends_s = now_s + ttl_s  # its entry finds that out; a life that was cut short ends with the longer one
        return True

    def release(self, lease_ids: Iterable[int]) -> None:
        """End leases; unknown ones are fine."""
        for lease_id in lease_ids:
            lease = self._leases.pop(lease_id, None)
            if lease is not None:
                self._objects.unpin_all(lease.objects)

    def expire(self, now_s: float) -> int:
        """End the leases whose time is over; returns how many. Call it now and then."""
        num_expired = 0
        if len(self._ends) > 2 * len(self._leases) + _SPARE_ENDS:
            self._ends = [(lease.ends_s, lease_id) for lease_id, lease in self._leases.items()]
            heapq.heapify(self._ends)
        while self._ends and self._ends[0][0] <= now_s:
            _, lease_id = heapq.heappop(self._ends)
            lease = self._leases.get(lease_id)
            if lease is not None and lease.ends_s > now_s:
                heapq.heappush(self._ends, (lease.ends_s, lease_id))
            elif lease is not None:
                self.release([lease_id])
                num_expired += 1
        return num_expired
