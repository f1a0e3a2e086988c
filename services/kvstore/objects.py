"""The objects of one node: which there are, in which tier, who must go. Pure: no I/O, no clock, no threads.

::

    stage ──> staged ──commit──> in memory ──written──> in memory and on disk ──evicted──> on disk only ──load──> both
      │         └─abandon─> gone     └─evicted──> gone      └─dropped──> in memory               └─dropped──> gone
      └─> Refusal

Invariants: an object is visible only between its commit and its removal. Free pages plus those of staged, resident,
loading and removed-but-pinned objects are all pages. Nothing that is pinned loses its bytes. Equal names mean equal
bytes: an object is never overwritten, only replaced by one of another length, which was damaged or foreign.

Who leaves memory first is in memory.py; who leaves the disk, the log decides. A namespace that would exceed its quota
evicts its own.

Names are as in common.cache.kvstore_wire; the bytes of headers and payloads are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from common.cache.kvstore_arena import Arena, Run
from common.cache.kvstore_wire import namespace_of
from services.kvstore.limits import Changes, Limits, Refusal
from services.kvstore.memory import Memory, Object, Rank
from services.kvstore.spaces import Spaces

_QUOTA_SCAN = 1024


class Objects:
    """All objects of a node, over the pages of `arena`.

    Attributes:
        memory: that tier; read only.
        num_bytes: headers and payloads of visible objects, whatever their tier.
        disk_bytes, num_on_disk: of those that the log has.
        staged_bytes: on their way into memory. unwritten_bytes: visible and not yet on disk.
    """

    def __init__(self, arena: Arena, limits: Limits) -> None:
        self.memory = Memory(arena, limits.memory_bytes)
        self._limits = limits
        self._objects: dict[bytes, Object] = {}
        self._spaces = Spaces(limits.quota_bytes)
        self._changes = Changes()
        self.num_bytes = self.staged_bytes = self.unwritten_bytes = 0
        self.disk_bytes = self.num_on_disk = 0

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._objects)

    @property
    def capacity_bytes(self) -> int:
        """What the larger tier may hold."""
        return max(self._limits.disk_bytes, self._limits.memory_bytes)

    def take_changes(self) -> Changes:
        """What happened since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    def get(self, name: bytes) -> Object | None:
        """A visible object."""
        return self._objects.get(name)

    def find(self, names: Sequence[bytes]) -> list[Object | None]:
        """As `get`, for each of many names."""
        return list(map(self._objects.get, names))

    def touch(self, path: Sequence[Object]) -> None:
        """They were used, as one path: its beginning counts as used last, so that ends are evicted first."""
        self.memory.touch(reversed(path))

    def refresh(self, one: Object) -> None:
        """Somebody would have written it again."""
        self.memory.refresh(one)

    def pin(self, one: Object) -> None:
        """Keep its bytes until `unpin`."""
        one.pins += 1

    def pin_all(self, many: Iterable[Object]) -> None:
        """As `pin`, for each."""
        for one in many:
            one.pins += 1

    def unpin_all(self, many: Iterable[Object]) -> None:
        """As `unpin`, for each."""
        for one in many:
            if one.pins > 1 or one.visible:
                one.pins -= 1
            else:
                self.unpin(one)

    def unpin(self, one: Object) -> None:
        """The inverse of `pin`; a removed object loses its pages with the last pin."""
        assert one.pins > 0, one
        one.pins -= 1
        if not one.pins and not one.visible:
            self.memory.free(one)

    def pin_softly(self, one: Object) -> None:
        """Evict a visible object from memory after all that are not softly pinned."""
        self.memory.change_rank(one, Rank.SOFT_PINNED)

    def stage(self, new: Object) -> Refusal | None:
        """Give an object pages that nobody sees yet; None when it has them. Evicts what is needed."""
        if not self.memory.could_hold(new):
            return Refusal.NO_SPACE
        if self._is_busy(new):
            return Refusal.BUSY
        if not self._fit_quota(namespace_of(new.name), new.num_bytes):
            return Refusal.QUOTA
        new.run = self.memory.allocate(new, self._evict)
        if new.run is None:
            return Refusal.NO_SPACE
        self.staged_bytes += new.num_bytes
        self._charge(new, new.num_bytes)
        return None

    def commit(self, new: Object) -> bool:
        """Make a staged object visible; False when one of the same length was first, and this one is dropped."""
        old = self._objects.get(new.name)
        if old is not None and old.length == new.length:
            self.abandon(new)
            return False
        if old is not None:
            self._remove(old)
        self.staged_bytes -= new.num_bytes
        if self._limits.disk_bytes:
            new.rank = max(new.rank, Rank.UNWRITTEN)
            self.unwritten_bytes += new.num_bytes
        self._show(new)
        self.memory.enlist(new)
        return True

    def abandon(self, staged: Object) -> None:
        """Drop a staged object; its pages are free at once."""
        self.staged_bytes -= staged.num_bytes
        self._charge(staged, -staged.num_bytes)
        self.memory.free(staged)

    def adopt(self, name: bytes, length: int) -> None:
        """An object that the log had at start."""
        one = Object(name, length)
        self._charge(one, one.num_bytes)
        self._show(one)
        self._put_on_disk(one)

    def begin_load(self, one: Object) -> Run | None:
        """Pages for the bytes of an object that is on disk only, pinned until `end_load`; None: no room now."""
        assert one.on_disk and one.run is None, one
        if self._is_busy(one):
            return None
        self.pin(one)  # or making room could take it off the disk
        run = self.memory.allocate(one, self._evict)
        if run is None:
            self.unpin(one)
        else:
            self.staged_bytes += one.num_bytes
        return run

    def end_load(self, one: Object, run: Run, header: bytes, checksum: int) -> None:
        """Its bytes are in the pages. An empty header: they did not come, and the object is removed."""
        self.staged_bytes -= one.num_bytes
        one.run = run
        if one.visible and header:
            one.header, one.checksum = header, checksum
            self.memory.enlist(one)
        elif one.visible:
            self._remove(one)
        self.unpin(one)

    def written(self, one: Object) -> None:
        """The log has it now; whoever wrote it still pins it."""
        if not one.visible:  # removed while it was written; one that came in its place will be written after it
            if one.name not in self._objects:
                self._changes.off_disk.append(one.name)
            return
        self.unwritten_bytes -= one.num_bytes
        self._put_on_disk(one)
        if one.rank is Rank.UNWRITTEN:
            self.memory.change_rank(one, Rank.PLAIN)

    def dropped(self, name: bytes) -> Object | None:
        """The log no longer has an object; returns it if it should be written again, since it is still used."""
        one = self._objects.get(name)
        if one is None or not one.on_disk:
            return None
        if one.run is None:
            self._remove(one)
            return None
        self._take_off_disk(one)
        self.unwritten_bytes += one.num_bytes
        if one.rank is Rank.PLAIN:
            self.memory.change_rank(one, Rank.UNWRITTEN)
        again, one.used = one.used, False  # once per use, or a disk smaller than memory would be written for ever
        return one if again else None

    def remove(self, name: bytes) -> bool:
        """Remove an object; False when there is none. Under a pin its bytes stay, but nobody finds it."""
        one = self._objects.get(name)
        if one is not None:
            self._remove(one)
        return one is not None

    def _is_busy(self, one: Object) -> bool:
        return self.staged_bytes > 0 and self.staged_bytes + one.num_bytes > self._limits.max_staged_bytes

    def _fit_quota(self, namespace: bytes, num_bytes: int) -> bool:
        """Evict from a namespace what it would have too much; False when that is not enough."""
        if self._spaces.fits(namespace, num_bytes):
            return True
        for one in [*self.memory.oldest(_QUOTA_SCAN), *islice(self._objects.values(), _QUOTA_SCAN)]:
            if one.visible and not one.pins and namespace_of(one.name) == namespace:
                self._changes.num_evicted += 1
                self._remove(one)
                if self._spaces.fits(namespace, num_bytes):
                    return True
        return False

    def _evict(self, one: Object) -> None:
        """Take an object out of memory: what is not on disk is gone."""
        self._changes.num_evicted += 1
        if one.on_disk:
            if one.used:
                self._changes.used.append(one.name)
            self.memory.strike(one)
            self.memory.free(one)
        else:
            self.memory.lost(one)
            self._remove(one)

    def _remove(self, one: Object) -> None:
        """Take a visible object away; its pages go with its last pin."""
        self.memory.strike(one)
        del self._objects[one.name]
        one.visible = False
        self._changes.visible.append((False, one.name))
        self.num_bytes -= one.num_bytes
        self._charge(one, -one.num_bytes)
        if one.on_disk:
            self._take_off_disk(one)
            self._changes.off_disk.append(one.name)
        elif self._limits.disk_bytes:
            self.unwritten_bytes -= one.num_bytes
        if not one.pins:
            self.memory.free(one)

    def _show(self, one: Object) -> None:
        one.visible = True
        self._objects[one.name] = one
        self.num_bytes += one.num_bytes
        self._changes.visible.append((True, one.name))

    def _put_on_disk(self, one: Object) -> None:
        one.on_disk = True
        self.disk_bytes += one.num_bytes
        self.num_on_disk += 1

    def _take_off_disk(self, one: Object) -> None:
        one.on_disk = False
        self.disk_bytes -= one.num_bytes
        self.num_on_disk -= 1

    def _charge(self, one: Object, num_bytes: int) -> None:
        self._spaces.charge(namespace_of(one.name), num_bytes)
