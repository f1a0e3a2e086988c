"""Makes the index of the SSD log from the log files that are there, and repairs what a crash left behind.

Per file: a sound index is believed, except in the two newest files, which may not have been on the medium when the
machine stopped. There, and where there is no index, the records are read, a torn end is cut off and the file is sealed,
except the newest, which goes on growing. A file in which nothing is right is renamed to `*.bad` (the newest few are
kept for people to look at). Files that are not this store's are left alone and counted.

When `rebuild` has returned, everything in the index is on the medium. Nothing here looks at a clock or at file times.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field

from common.base.logging import get_logger
from services.kvstore.ssd_disk import Disk, DiskFile
from services.kvstore.ssd_durable import OpenFile
from services.kvstore.ssd_format import BLOCK_BYTES, Place, pack_entries, pack_file_head, parse_file_head
from services.kvstore.ssd_index import Index
from services.kvstore.ssd_owner import OWNER_NAME, STORE_NAME
from services.kvstore.ssd_recovery import Found, add_index, cut_off, inspect, is_foreign
from services.kvstore.ssd_tail import file_name

BAD_SUFFIX = ".bad"
MAX_BAD_FILES = 4
_LOG_FILE = re.compile(r"[0-9]{10}\.log")
_NUM_UNSYNCED = 2
"""So many of the newest files may not have been on the medium when the process before ended (see ssd_tail)."""


@dataclass(slots=True)
class Rebuilt:
    """A log as it was found and repaired.

    Attributes:
        index: of everything that is right, and on the medium.
        active: the file that goes on growing.
        next_number: higher than any file's.
        next_sequence: higher than any record's and removal's.
        damaged_ranges: runs of blocks between good records that were passed over.
        torn_bytes: cut off from the ends of files.
        quarantined_files: renamed to `*.bad` now.
        bad_bytes: of all files that are kept under such names.
        foreign_files: left alone.
    """

    index: Index = field(default_factory=Index)
    active: OpenFile | None = None
    next_number: int = 1
    next_sequence: int = 1
    damaged_ranges: int = 0
    torn_bytes: int = 0
    quarantined_files: int = 0
    bad_bytes: int = 0
    foreign_files: int = 0


def find_store_id(disk: Disk) -> int | None:
    """The store that a log file says it belongs to; `None` when none says so. Raises OSError."""
    for _, name in log_files(disk.names()):
        with contextlib.closing(disk.open(name)) as file:
            store_id = _told_store(file)
            if store_id is not None:
                return store_id
    return None


def log_files(names: list[str]) -> list[tuple[int, str]]:
    """(number, name) of what is named like a log file, by number."""
    return sorted((int(name[:10]), name) for name in names if _LOG_FILE.fullmatch(name) and int(name[:10]) > 0)


def rebuild(disk: Disk, store_id: int, max_bad_bytes: int) -> Rebuilt:
    """Read and repair all files; of those put aside now or earlier keep at most so many bytes.

    Raises:
        OSError: a file cannot be opened or repaired.
    """
    rebuilt = Rebuilt()
    names = disk.names()
    numbered = log_files(names)
    ours = {name for _, name in numbered} | {OWNER_NAME, STORE_NAME}
    rebuilt.foreign_files = sum(name not in ours and not name.endswith(BAD_SUFFIX) for name in names)
    for place_in_line, (number, name) in enumerate(numbered):
        _take_in(disk, Place(store_id, number), name, len(numbered) - place_in_line, rebuilt)
    if numbered:
        rebuilt.next_number = numbered[-1][0] + 1
    rebuilt.bad_bytes = _keep_newest_bad(disk, max_bad_bytes)
    disk.sync_names()
    rebuilt.index.settle()
    return rebuilt


def _take_in(disk: Disk, place: Place, name: str, from_end: int, rebuilt: Rebuilt) -> None:
    """Read one file, the `from_end`-th from the newest, which is the first."""
    file = disk.open(name, writable=True)
    keep_open = False
    try:
        if is_foreign(file, place):
            rebuilt.foreign_files += 1
            get_logger().warning("a log file of another store is left alone", file=name)
            return
        found = inspect(file, place, believe_index=from_end > _NUM_UNSYNCED)
        if not found.head_sound and not found.entries:
            _set_aside(disk, name, file.size(), rebuilt)
            return
        rebuilt.damaged_ranges += found.damaged_ranges
        rebuilt.torn_bytes += found.torn_bytes
        if found.damaged_ranges:
            get_logger().warning("damaged records were passed over", file=name, ranges=found.damaged_ranges)
        keep_open = from_end == 1 and not found.sealed
        _repair(file, place, found, seal=not keep_open)
        if from_end <= _NUM_UNSYNCED:
            file.sync()
        highest = rebuilt.index.load(place.number, file.size(), found.entries)
        rebuilt.next_sequence = max(rebuilt.next_sequence, highest + 1)
        if keep_open:
            rebuilt.active = OpenFile(place, file, found.data_end, bytearray(pack_entries(found.entries)), highest)
            rebuilt.index.set_size(place.number, rebuilt.active.final_bytes)
    finally:
        if not keep_open:
            file.close()


def _repair(file: DiskFile, place: Place, found: Found, seal: bool) -> None:
    """Make the file what it would be without the crash."""
    if not found.head_sound:
        file.write([pack_file_head(place)], 0)
    if found.sealed:
        return
    cut_off(file, found)
    if seal:
        try:
            add_index(file, place, found)
        except OSError as error:  # A full disk: the next start reads the records again.
            get_logger().warning("a log file has no index", file=file_name(place.number), error=str(error))
            cut_off(file, found)


def _set_aside(disk: Disk, name: str, size: int, rebuilt: Rebuilt) -> None:
    """A file with nothing right in it: keep it for people, out of the way, unless it is empty."""
    if size == 0:
        disk.unlink(name)
        return
    disk.rename(name, name + BAD_SUFFIX)
    rebuilt.quarantined_files += 1
    get_logger().warning("a log file without a sound record was put aside", file=name + BAD_SUFFIX)


def _keep_newest_bad(disk: Disk, max_bytes: int) -> int:
    """Remove the oldest files that were put aside; returns the bytes of what is left."""
    kept_bytes = num_kept = 0
    for name in sorted((name for name in disk.names() if name.endswith(".log" + BAD_SUFFIX)), reverse=True):
        with contextlib.closing(disk.open(name)) as file:
            size = file.size()
        if num_kept < MAX_BAD_FILES and kept_bytes + size <= max_bytes:
            num_kept, kept_bytes = num_kept + 1, kept_bytes + size
        else:
            disk.unlink(name)
    return kept_bytes


def _told_store(file: DiskFile) -> int | None:
    target = memoryview(bytearray(BLOCK_BYTES))
    place = parse_file_head(target[: file.read([target], 0)])
    return place.store_id if place is not None else None
