"""What a worker's stream says of its index, as the prefix view takes it in. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from common.kv.events import IndexDigest


class ChangeKind(IntEnum):
    """What happened to a block; the values are the wire's."""

    STORED = 1
    REMOVED = 2
    CLEARED = 3


Change = tuple[int, bytes, int]
"""(ChangeKind, prefix hash, tier 1 or 2). CLEARED has no hash; its tier may be 0, which means all of them.

A change of a tier that this router does not know is skipped.
"""


@dataclass(slots=True, frozen=True)
class Update:
    """One message of a worker's stream.

    Attributes:
        seq: number of the last change in it; numbers count changes, so an update of k changes moves it by k.
        snapshot: the changes are entries of the state at `seq`.
        snapshot_end: the state is complete with this update.
        digest: of the state at `seq`, when the worker offers a check.
    """

    seq: int
    changes: Sequence[Change]
    snapshot: bool = False
    snapshot_end: bool = False
    digest: IndexDigest | None = None
