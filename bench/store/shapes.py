"""What is measured: sizes, batches and operations, as the bench and its clients agree on them."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024
OURS = ("ours shm", "ours tcp", "ours ucx")
MOONCAKE = ("mooncake shm", "mooncake tcp", "mooncake tcp, pool off")
NUM_NAMES = 256
"""Names in one question whether they exist."""
_BATCH = {64 * KIB: 32, 360 * KIB: 32, MIB: 32, 16 * MIB: 8}
"""Objects of a batch by their size: 32, but no more than 128 MiB together."""
_REPEATS = {64 * KIB: (40, 10), 360 * KIB: (20, 5), MIB: (20, 5), 16 * MIB: (5, 1)}
"""Calls of one round by size: single ones, batches."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure.

    Attributes:
        op: get, put or exists.
        size: bytes of an object.
        count: objects, or names, of one call.
        repeats: calls of one round.
    """

    op: str
    size: int
    count: int
    repeats: int

    @property
    def title(self) -> str:
        """For a table."""
        if self.op == "exists":
            return f"exists {self.count}"
        size = f"{self.size // MIB} MiB" if self.size >= MIB else f"{self.size // KIB} KiB"
        return f"{self.op} {self.count} x {size}"


def cells() -> list[Cell]:
    """All that is measured, in the order of the table."""
    result = [Cell("exists", 0, count, 20) for count in (1, NUM_NAMES)]
    for op in ("get", "put"):
        for size, count in _BATCH.items():
            single, batch = _REPEATS[size]
            result += [Cell(op, size, 1, single), Cell(op, size, count, batch)]
    return result


def batches() -> dict[int, int]:
    """Objects of a batch by size."""
    return dict(_BATCH)
