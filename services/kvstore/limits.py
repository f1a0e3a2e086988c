"""What bounds a node's table of objects, why it refuses one, and what it reports. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Refusal(Enum):
    """Why an object is not staged. BUSY passes: too many bytes are staged at the moment."""

    NO_SPACE = "no_space"
    QUOTA = "quota"
    BUSY = "busy"


@dataclass(slots=True, frozen=True)
class Limits:
    """Sizes in bytes.

    Attributes:
        memory_bytes: of headers and payloads in memory.
        max_staged_bytes: on their way into memory at a time, if more than one object.
        quota_bytes: of one namespace; 0: no quota.
        disk_bytes: what the log may take; 0: there is no disk.
    """

    memory_bytes: int
    max_staged_bytes: int
    quota_bytes: int = 0
    disk_bytes: int = 0


@dataclass(slots=True)
class Changes:
    """What became of names since it was last taken.

    Attributes:
        visible: (True for came, False for went, name), in order.
        off_disk: names whose records the log shall drop.
        used: names that are on disk only from now on, but were used while they were in memory.
        num_evicted: objects that left memory to make room.
    """

    visible: list[tuple[bool, bytes]] = field(default_factory=list)
    off_disk: list[bytes] = field(default_factory=list)
    used: list[bytes] = field(default_factory=list)
    num_evicted: int = 0
