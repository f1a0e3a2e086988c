"""How an SSD log is kept, and what it says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from services.kvstore.ssd_format import BLOCK_BYTES

MIN_CAPACITY_BYTES = 64 * BLOCK_BYTES


class SyncPolicy(StrEnum):
    """When appends are pushed to the medium. Always by `sync` and `close`, and all but the newest two log files."""

    NONE = "none"
    INTERVAL = "interval"
    """With an append, removal or `compact` that comes `sync_interval_s` or more after the last time."""
    BATCH = "batch"
    """Before every append and removal answers; threads that wait share a sync."""


@dataclass(frozen=True, slots=True)
class SsdOptions:
    """How a log is kept.

    Attributes:
        file_bytes: size of a log file; at most an eighth of the cap is used.
        sync: see `SyncPolicy`.
        sync_interval_s: see `SyncPolicy.INTERVAL`.
    """

    file_bytes: int = 64 * 1024 * 1024
    sync: SyncPolicy = SyncPolicy.INTERVAL
    sync_interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class SsdStats:
    """What a log holds and what happened to it since it was opened.

    Attributes:
        objects: that can be read.
        payload_bytes: of these.
        disk_bytes: of all log files.
        capacity_bytes: the cap on them.
        files: log files.
        appended_bytes: payload bytes appended.
        copied_bytes: payload bytes written again to reclaim space.
        dropped_objects: given up for want of space.
        corrupt_records: damaged ones that a read found.
        syncs: that succeeded.
        damaged_ranges: passed over at the start.
        torn_bytes: cut off at the start.
        quarantined_files: put aside at the start.
        foreign_files: left alone at the start.
    """

    objects: int
    payload_bytes: int
    disk_bytes: int
    capacity_bytes: int
    files: int
    appended_bytes: int
    copied_bytes: int
    dropped_objects: int
    corrupt_records: int
    syncs: int
    damaged_ranges: int
    torn_bytes: int
    quarantined_files: int
    foreign_files: int
