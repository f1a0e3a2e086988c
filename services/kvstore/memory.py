"""The memory tier of one node: whose bytes lie in the arena, and who leaves first. Pure, like objects.py, its user.

Memory is full before anything is evicted: what the disk has as well, then what was not written yet, then what is softly
pinned; of these, in the order of order.py. What is pinned stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from common.cache.kvstore_arena import Arena, Run
from common.cache.l3 import HEADER_BYTES
from services.kvstore.order import Ghosts, Order


class Rank(IntEnum):
    """Who is evicted from memory first."""

    PLAIN = 0
    UNWRITTEN = 1
    SOFT_PINNED = 2


@dataclass(slots=True, eq=False)
class Object:
    """One object; changed by `Objects` and `Memory` only.

    Attributes:
        name: its key.
        length: of the payload.
        header: while in memory; empty on disk only.
        checksum: of the payload, while in memory.
        run: its pages, None on disk only.
        record: how it is lent, packed by whoever lends it; empty when it has to be made anew.
        rank: of eviction.
        on_disk: whether the log has it.
        used: looked up since it came into memory.
        proven: used again, and so evicted later (order.py).
        pins: leases and writes that need it; it keeps its bytes until there are none.
        visible: committed and not removed.
    """

    name: bytes
    length: int
    header: bytes = b""
    checksum: int = 0
    run: Run | None = None
    record: bytes = b""
    rank: Rank = Rank.PLAIN
    on_disk: bool = False
    used: bool = False
    proven: bool = False
    pins: int = 0
    visible: bool = False

    @property
    def soft_pinned(self) -> bool:
        """Whether it is evicted last."""
        return self.rank is Rank.SOFT_PINNED

    @property
    def num_bytes(self) -> int:
        """Header and payload."""
        return HEADER_BYTES + self.length


class Memory:
    """Pages of objects, and the order in which they are given up.

    Attributes:
        num_bytes: headers and payloads of all objects that have pages, visible or not.
        limit_bytes: of these; the arena's pages are a second limit.
    """

    def __init__(self, arena: Arena, limit_bytes: int) -> None:
        self.num_bytes = 0
        self.limit_bytes = limit_bytes
        self._arena = arena
        self._orders: tuple[Order[Object], ...] = tuple(Order() for _ in Rank)
        self._ghosts = Ghosts()

    def could_hold(self, one: Object) -> bool:
        """Whether it would fit if everything else went."""
        return one.num_bytes <= self.limit_bytes and self._arena.pages_for(one.length) <= self._arena.num_pages

    def allocate(self, one: Object, evict: Callable[[Object], None]) -> Run | None:
        """Pages for an object; None when what would have to go is pinned.

        Args:
            one: gets them when the caller says so.
            evict: called with victims until there is room; must take each out of memory.
        """
        if not self.could_hold(one):
            return None
        run = None
        while self.num_bytes + one.num_bytes > self.limit_bytes or (run := self._arena.allocate(one.length)) is None:
            victim = self._victim()
            if victim is None:
                return None
            evict(victim)
        self.num_bytes += one.num_bytes
        return run

    def free(self, one: Object) -> None:
        """Take the pages of an object that is in no order back; fine when it has none."""
        if one.run is not None:
            self._arena.free(one.run)
            self.num_bytes -= one.num_bytes
            one.run, one.header, one.record, one.used, one.proven = None, b"", b"", False, False

    def enlist(self, one: Object) -> None:
        """It may be evicted from now on; of its rank it was used last."""
        one.proven = one.proven or self._ghosts.recall(one.name)
        self._orders[one.rank].add(one)

    def strike(self, one: Object) -> None:
        """It is no longer for eviction; fine when it was not."""
        self._orders[one.rank].discard(one)

    def lost(self, one: Object) -> None:
        """It was evicted and is nowhere else: should it come again, it was worth keeping."""
        self._ghosts.add(one.name, self._arena.num_pages)

    def change_rank(self, one: Object, rank: Rank) -> None:
        """Give an object another rank; if it may be evicted, then after all others of that rank."""
        may_be_evicted = one in self._orders[one.rank]
        self.strike(one)
        one.rank = rank
        if may_be_evicted:
            self.enlist(one)

    def touch(self, path: Iterable[Object]) -> None:
        """Visible objects in memory were used just now, the last of them last; others are passed over."""
        orders = self._orders
        for one in path:
            if one.visible and one.run is not None:
                one.used = True
                orders[one.rank].use(one)

    def refresh(self, one: Object) -> None:
        """A visible object is wanted, though nobody has used it."""
        if one.run is not None:
            one.used = True
            self._orders[one.rank].refresh(one)

    def oldest(self, limit: int) -> Iterator[Object]:
        """The first of each rank, those that leave first."""
        for order in self._orders:
            yield from islice(order, limit)

    def _victim(self) -> Object | None:
        return next((one for order in self._orders if (one := order.victim()) is not None), None)
