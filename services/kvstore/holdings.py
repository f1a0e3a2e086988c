"""What a node has, and everybody who must hear of a change: the one place where the pure table meets the shell.

Whoever changed the table calls `settle` before it gives the loop to others: names go to the leaders that follow,
records that nobody needs leave the log, and those who wait for room look again. Lives on the node's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.base.clock import Clock
from common.cache.kvstore_arena import Arena
from services.kvstore.inventory import Inventory
from services.kvstore.leases import LeaseBook
from services.kvstore.log_shell import LogShell
from services.kvstore.metrics import NodeMetrics
from services.kvstore.objects import Objects

_TICK_S = 0.25
_REMOVED_AT_ONCE = 2000


class Holdings:
    """The parts of a node that its calls share.

    Attributes:
        arena, objects, leases, inventory, metrics, clock: see there.
        log: None without a disk.
    """

    def __init__(
        self,
        *,
        arena: Arena,
        objects: Objects,
        leases: LeaseBook,
        log: LogShell | None,
        metrics: NodeMetrics,
        clock: Clock,
    ) -> None:
        self.arena = arena
        self.objects = objects
        self.leases = leases
        self.log = log
        self.metrics = metrics
        self.clock = clock
        self.inventory = Inventory(objects)
        self._room = asyncio.Event()

    def settle(self) -> None:
        """Pass on what has changed."""
        changes = self.objects.take_changes()
        self.inventory.publish(changes.visible)
        self.metrics.evicted.inc(changes.num_evicted)
        if self.log is not None and changes.off_disk:
            self.log.drop(changes.off_disk)
        if self.log is not None and changes.used:
            self.log.touch(changes.used)
        self._room.set()

    async def wait_for_room(self, timeout_s: float) -> bool:
        """Wait for the next change after which there may be room; False when none came in time."""
        self._room.clear()
        try:
            await asyncio.wait_for(self._room.wait(), max(0.0, timeout_s))
        except TimeoutError:
            return False
        return True

    def remove(self, names: Sequence[bytes]) -> int:
        """Remove objects; returns how many were there."""
        removed = sum([self.objects.remove(name) for name in names])
        self.settle()
        return removed

    async def remove_namespace(self, prefix: bytes) -> int:
        """Remove all objects whose names begin so, in portions that leave the loop to others between them."""
        names = [name for name in self.objects if name.startswith(prefix)]
        removed = 0
        for start in range(0, len(names), _REMOVED_AT_ONCE):
            removed += self.remove(names[start : start + _REMOVED_AT_ONCE])
            await asyncio.sleep(0)
        return removed

    async def tend(self) -> None:
        """Let leases expire, for ever."""
        while True:
            await asyncio.sleep(_TICK_S)
            expired = self.leases.expire(self.clock())
            if expired:
                self.metrics.expired_leases.inc(expired)
                self.settle()
