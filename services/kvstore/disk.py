"""The disk tier of one node as the table of objects sees it: what the log has, and who leaves it first. Pure.

Making room in a log costs work, so it is done ahead: beyond a high mark the least recently used go, down to a low one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from services.kvstore.memory import Object


@dataclass(slots=True, frozen=True)
class Marks:
    """Sizes in bytes of headers and payloads.

    Attributes:
        limit_bytes: 0: there is no disk.
        high_ratio, low_ratio: shares of it between which the disk is kept.
    """

    limit_bytes: int = 0
    high_ratio: float = 0.95
    low_ratio: float = 0.90


class Disk:
    """Objects that the log has, least recently used first.

    Attributes:
        num_bytes: headers and payloads.
    """

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.num_bytes = 0
        self._order: OrderedDict[Object, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    @property
    def exists(self) -> bool:
        """Whether there is a disk at all."""
        return self.marks.limit_bytes > 0

    def put(self, one: Object) -> None:
        """The log has it now."""
        one.on_disk = True
        self.num_bytes += one.num_bytes
        self._order[one] = None

    def take(self, one: Object) -> None:
        """The log shall no longer have it."""
        one.on_disk = False
        self.num_bytes -= one.num_bytes
        del self._order[one]

    def touch(self, one: Object) -> None:
        """It was used."""
        self._order.move_to_end(one)

    def oldest(self, limit: int) -> Iterator[Object]:
        """The first to leave."""
        return islice(self._order, limit)

    def excess(self) -> list[Object]:
        """Who should leave now, pinned ones left out; empty below the high mark."""
        marks = self.marks
        if self.num_bytes <= marks.limit_bytes * marks.high_ratio:
            return []
        return self.victims(int(marks.limit_bytes * (1 - marks.low_ratio)))

    def victims(self, free_bytes: int) -> list[Object]:
        """Who has to leave so that so much is free, pinned ones left out."""
        surplus = self.num_bytes + free_bytes - self.marks.limit_bytes
        chosen: list[Object] = []
        for one in self._order:
            if surplus <= 0:
                break
            if not one.pins:
                surplus -= one.num_bytes
                chosen.append(one)
        return chosen
