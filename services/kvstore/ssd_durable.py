"""What of the SSD log is on the medium: the files that were written to since, and who waits for which record.

Syncs run one at a time, beside appends. One sync does the work of all that wait (group commit). When a sync fails, the
kernel may have dropped what it could not write and call the next one a success; so the records concerned are *doomed*:
nobody is told any more that they are durable, and their file takes no further ones.

Knows nothing of keys or of where records are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from services.kvstore.ssd_disk import Disk, DiskFile
from services.kvstore.ssd_format import TRAILER_BYTES, Place


@dataclass(slots=True, eq=False)
class OpenFile:
    """A log file that grows, or that was written to since it was last on the medium.

    Attributes:
        place: which one.
        file: who writes closes it while it grows, who syncs once it is left.
        position: where the next record goes.
        index: entries of what it holds, packed.
        last_sequence: of its newest record.
        left: nothing is written to it any more. Only the writer says so.
        failed: a sync of it failed.
    """

    place: Place
    file: DiskFile
    position: int
    index: bytearray
    last_sequence: int = 0
    left: bool = False
    failed: bool = False

    @property
    def final_bytes(self) -> int:
        """Its size if it were sealed now."""
        return self.position + len(self.index) + TRAILER_BYTES


class SyncFailed(OSError):
    """What was written before may never be on the medium."""


class Durable:
    """See the module.

    Attributes:
        num_syncs: that succeeded.
    """

    def __init__(self, disk: Disk, synced: int, on_doomed: Callable[[range], None]) -> None:
        """Records up to sequence number `synced` are on the medium; `on_doomed` is told the numbers of those that may
        never be."""
        self.num_syncs = 0
        self._disk = disk
        self._pending: list[OpenFile] = []
        self._names_changed = False
        self._pending_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._synced = synced
        self._on_doomed = on_doomed
        self._doomed = range(0)

    @property
    def has_left_files(self) -> bool:
        """Whether a file that does not grow any more is not on the medium yet."""
        with self._pending_lock:
            return any(opened.left for opened in self._pending)

    def written(self, opened: OpenFile, sequence: int) -> None:
        """A record is in its file."""
        with self._pending_lock:
            opened.last_sequence = sequence
            if opened not in self._pending:
                self._pending.append(opened)

    def leave(self, opened: OpenFile) -> None:
        """A file does not grow any more; a later sync closes it."""
        with self._pending_lock:
            opened.left = True
            if opened not in self._pending:
                self._pending.append(opened)

    def names_changed(self) -> None:
        """A file was made or removed."""
        with self._pending_lock:
            self._names_changed = True

    def sync(self, only_left: bool = False) -> None:
        """Return when all that was written before is on the medium, or all of it in files that are left.

        Raises:
            SyncFailed: some of it may never be.
        """
        with self._sync_lock:
            self._sync(only_left)

    def sync_through(self, sequence: int) -> None:
        """Return when the record of this number is on the medium.

        Raises:
            SyncFailed: it may never be.
        """
        with self._sync_lock:
            if sequence not in self._doomed and self._synced < sequence:
                self._sync(only_left=False)
            if sequence in self._doomed:
                raise SyncFailed(f"record {sequence} may not be on the medium")

    def close(self) -> None:
        """Give back the files that were left; idempotent."""
        with self._sync_lock, self._pending_lock:
            for opened in self._pending:
                if opened.left:
                    opened.file.close()
            self._pending = []

    def _sync(self, only_left: bool) -> None:
        """The sync lock is held."""
        with self._pending_lock:
            wanted = [opened for opened in self._pending if opened.left or not only_left]
            states = [(opened, opened.left, opened.last_sequence) for opened in wanted]
            self._pending = [opened for opened in self._pending if opened not in wanted]
            names, self._names_changed = self._names_changed, False
        try:
            for opened in wanted:
                opened.file.sync()
            if names:
                self._disk.sync_names()
        except OSError as error:
            self._give_up(wanted)
            raise SyncFailed(error.errno, f"sync failed: {error.strerror or error}") from error
        finally:
            for opened, left, _ in states:
                if left:
                    opened.file.close()
        self.num_syncs += 1
        self._synced = max([self._synced, *(last_sequence for _, _, last_sequence in states)])

    def _give_up(self, files: list[OpenFile]) -> None:
        """Nobody may believe that what is in these files is on the medium, nor that a second try says so."""
        with self._pending_lock:
            self._names_changed = True
            for opened in files:
                opened.failed = True
            last = max([self._doomed.stop - 1, *(opened.last_sequence for opened in files)])
        first = min(self._synced + 1, self._doomed.start) if self._doomed else self._synced + 1
        self._doomed = range(first, last + 1)
        self._on_doomed(self._doomed)
