"""A disk in memory whose power can be cut, and that can fail on demand, for the SSD log.

What was written is seen by readers at once, as through a page cache. `cut_power` makes the disk that a machine finds
after a power failure: what was synced, and of the rest any sectors, names and sizes, in any combination.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

SECTOR_BYTES = 512


@dataclass(eq=False)
class Inode:
    """A file: what readers see, what is on the medium, and what was done in between (offset and bytes, or a size)."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)


@dataclass
class Faults:
    """What goes wrong next; each once. Error numbers; a failing write writes a part of its bytes first."""

    write: int = 0
    truncate: int = 0
    sync: int = 0
    read: int = 0
    unlink: int = 0

    def take(self, name: str) -> None:
        """Raise the fault of this name, if there is one."""
        number = getattr(self, name)
        setattr(self, name, 0)
        if number:
            raise OSError(number, errno.errorcode[number])


class SimulatedFile:
    """See `DiskFile`."""

    def __init__(self, disk: SimulatedDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.data)

    def read(self, targets: Sequence[memoryview], offset: int) -> int:
        self._disk.faults.take("read")
        done = 0
        for target in targets:
            piece = self._inode.data[offset + done : offset + done + target.nbytes]
            target[: len(piece)] = piece
            done += len(piece)
        return done

    def write(self, sources: Sequence[bytes | memoryview], offset: int) -> None:
        whole = b"".join(sources)
        room = self._disk.room_for(self._inode, offset, len(whole))
        failing = self._disk.faults.write
        keep = min(room, len(whole) // 3 if failing else len(whole))
        self._put(whole[:keep], offset)
        self._disk.faults.take("write")
        if keep < len(whole):
            raise OSError(errno.ENOSPC, "no room")

    def truncate(self, size: int) -> None:
        self._disk.faults.take("truncate")
        resize(self._inode.data, size)
        self._inode.pending.append(size)

    def sync(self) -> None:
        self._disk.faults.take("sync")
        self._inode.durable = bytes(self._inode.data)
        self._inode.pending.clear()

    def close(self) -> None:
        pass

    def _put(self, data: bytes, offset: int) -> None:
        resize(self._inode.data, max(len(self._inode.data), offset + len(data)))
        self._inode.data[offset : offset + len(data)] = data
        self._inode.pending.append((offset, data))


class SimulatedDisk:
    """See `Disk`."""

    path = "simulated"

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.faults = Faults()
        self.capacity_bytes = capacity_bytes
        self.files: dict[str, Inode] = {}
        self.durable_files: dict[str, Inode] = {}
        self._pending_names: list[tuple[str, str, Inode | None]] = []

    def names(self) -> list[str]:
        return list(self.files)

    def open(self, name: str, *, create: bool = False, writable: bool = False) -> SimulatedFile:
        if create:
            if name in self.files:
                raise FileExistsError(errno.EEXIST, name)
            self.files[name] = Inode()
            self._pending_names.append(("link", name, self.files[name]))
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, name)
        return SimulatedFile(self, self.files[name])

    def unlink(self, name: str) -> None:
        self.faults.take("unlink")
        if self.files.pop(name, None) is None:
            raise FileNotFoundError(errno.ENOENT, name)
        self._pending_names.append(("unlink", name, None))

    def rename(self, name: str, to: str) -> None:
        inode = self.files.pop(name)
        self.files[to] = inode
        self._pending_names += [("link", to, inode), ("unlink", name, None)]

    def sync_names(self) -> None:
        self.faults.take("sync")
        self.durable_files = dict(self.files)
        self._pending_names.clear()

    def close(self) -> None:
        pass

    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(inode.data) for inode in self.files.values())

    def room_for(self, inode: Inode, offset: int, length: int) -> int:
        """How many bytes of a write fit."""
        free = self.capacity_bytes - self.used_bytes()
        return max(0, min(length, len(inode.data) - offset + free))

    def cut_power(self, chance: random.Random, kept: float) -> SimulatedDisk:
        """The disk after a power failure: what was not synced is there with probability `kept`, sector by sector."""
        after = SimulatedDisk(self.capacity_bytes)
        names = dict(self.durable_files)
        for action, name, inode in self._pending_names:
            if chance.random() < kept:
                if action == "link" and inode is not None:
                    names[name] = inode
                else:
                    names.pop(name, None)
        for name, inode in names.items():
            data = _after_failure(inode, chance, kept)
            after.files[name] = Inode(data, bytes(data))
        after.durable_files = dict(after.files)
        return after


def resize(data: bytearray, size: int) -> None:
    """Cut off or fill up with zeros."""
    del data[size:]
    data.extend(bytes(size - len(data)))


def _after_failure(inode: Inode, chance: random.Random, kept: float) -> bytearray:
    data = bytearray(inode.durable)
    for change in inode.pending:
        if isinstance(change, int):
            if chance.random() < kept:
                resize(data, change)
            continue
        offset, written = change
        for start in range(0, len(written), SECTOR_BYTES):
            if chance.random() < kept:
                piece = written[start : start + SECTOR_BYTES]
                end = offset + start + len(piece)
                resize(data, max(len(data), end))
                data[offset + start : end] = piece
    return data
