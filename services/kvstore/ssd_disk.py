"""The few things the SSD log asks of a file system, so that tests can cut its power.

`OsDisk` is a directory. Writes go through the page cache: on the machines measured, O_DIRECT halves the throughput of
360 KiB appends and quarters cold reads, and it would demand aligned memory of every caller. Memory of callers is
neither copied nor kept; system calls release the interpreter lock.

What a name or a byte is worth after a power failure: bytes only after `DiskFile.sync`, names (made, renamed, removed)
only after `Disk.sync_names`. The log assumes nothing beyond that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Protocol

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a medium that has no room, as opposed to one that is broken."""


class DiskFile(Protocol):
    """An open file."""

    def size(self) -> int:
        """Bytes."""

    def read(self, targets: Sequence[memoryview], offset: int) -> int:
        """Fill the targets in order; returns how many bytes there were: fewer than asked for at the end of the file."""

    def write(self, sources: Sequence[bytes | memoryview], offset: int) -> None:
        """Write everything or raise; after an error any part may have been written."""

    def truncate(self, size: int) -> None:
        """Cut off what lies behind."""

    def sync(self) -> None:
        """Return when everything written before is on the medium."""

    def close(self) -> None:
        """Give the file back; idempotent."""


class Disk(Protocol):
    """A flat directory. Every call may raise OSError.

    Attributes:
        path: where it is, for people.
    """

    path: str

    def names(self) -> list[str]:
        """Names of all regular files, in no order."""

    def open(self, name: str, *, create: bool = False, writable: bool = False) -> DiskFile:
        """Open a file; `create` demands that it does not exist yet."""

    def unlink(self, name: str) -> None:
        """Remove a file; who has it open can go on reading."""

    def rename(self, name: str, to: str) -> None:
        """Give a file another name; replaces what is there."""

    def sync_names(self) -> None:
        """Return when every name made, renamed or removed before is so on the medium."""

    def close(self) -> None:
        """Give the directory back; idempotent."""


class OsFile:
    """See `DiskFile`."""

    def __init__(self, fd: int) -> None:
        """Take ownership of `fd`."""
        self._fd = fd

    def size(self) -> int:
        """See `DiskFile.size`."""
        return os.fstat(self._fd).st_size

    def read(self, targets: Sequence[memoryview], offset: int) -> int:
        """See `DiskFile.read`."""
        wanted = sum(target.nbytes for target in targets)
        done = os.preadv(self._fd, targets, offset)
        while 0 < done < wanted:
            more = os.preadv(self._fd, _rest(targets, done), offset + done)
            if more == 0:
                break
            done += more
        return done

    def write(self, sources: Sequence[bytes | memoryview], offset: int) -> None:
        """See `DiskFile.write`."""
        views = [memoryview(source) for source in sources]
        wanted = sum(view.nbytes for view in views)
        done = os.pwritev(self._fd, views, offset)
        while done < wanted:
            done += os.pwritev(self._fd, _rest(views, done), offset + done)

    def truncate(self, size: int) -> None:
        """See `DiskFile.truncate`."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """See `DiskFile.close`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """See `Disk`."""

    def __init__(self, path: str) -> None:
        """Open a directory that exists."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def names(self) -> list[str]:
        """See `Disk.names`."""
        with os.scandir(self._fd) as found:
            return [entry.name for entry in found if entry.is_file(follow_symlinks=False)]

    def open(self, name: str, *, create: bool = False, writable: bool = False) -> OsFile:
        """See `Disk.open`. Links are not followed."""
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_RDWR if writable or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(os.open(name, flags, 0o600, dir_fd=self._fd))

    def unlink(self, name: str) -> None:
        """See `Disk.unlink`."""
        os.unlink(name, dir_fd=self._fd)

    def rename(self, name: str, to: str) -> None:
        """See `Disk.rename`."""
        os.rename(name, to, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def sync_names(self) -> None:
        """See `Disk.sync_names`."""
        os.fsync(self._fd)

    def close(self) -> None:
        """See `Disk.close`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _rest(views: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of contiguous views after their first `done` bytes."""
    left = []
    for view in views:
        flat = view.cast("B")
        if done < flat.nbytes:
            left.append(flat[done:])
        done = max(0, done - flat.nbytes)
    return left
