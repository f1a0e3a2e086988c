"""The names of a node's objects as one numbered stream for leaders.

Every change gets the next `seq` of this life of the node. A follower first gets a snapshot that carries the seq it is
true at, then the changes after it. One that falls too far behind is cut off and follows anew: nothing is kept for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass

NAMES_PER_PAGE = 2048
MAX_PENDING = 1024


@dataclass(slots=True, frozen=True)
class Page:
    """Names that came and went by the change `seq`; on a snapshot page those that there were."""

    seq: int
    added: Sequence[bytes] = ()
    removed: Sequence[bytes] = ()
    snapshot: bool = False
    snapshot_end: bool = False


class Inventory:
    """Numbers and distributes changes. Lives on the node's loop.

    Args:
        names: of the objects there are now.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = names
        self._seq = 0
        self._followers: set[asyncio.Queue[Page | None]] = set()

    @property
    def num_followers(self) -> int:
        """Streams that are fed now."""
        return len(self._followers)

    def publish(self, changes: Sequence[tuple[bool, bytes]]) -> None:
        """Tell all followers of (came, name) in order; only what became of each name in the end travels."""
        if not changes:
            return
        self._seq += len(changes)
        if not self._followers:
            return
        final = {name: came for came, name in changes}
        added = [name for name, came in final.items() if came]
        removed = [name for name, came in final.items() if not came]
        page = Page(self._seq, added, removed)
        for queue in list(self._followers):
            try:
                queue.put_nowait(page)
            except asyncio.QueueFull:
                self._followers.discard(queue)

    def close(self) -> None:
        """End all streams after what they have been sent."""
        followers, self._followers = self._followers, set()
        for queue in followers:
            if not queue.full():  # a full one has a follower that does not wait
                queue.put_nowait(None)

    async def watch(self, pulse_s: float) -> AsyncGenerator[Page, None]:
        """A snapshot, then every change after it, and an empty page after each `pulse_s` of silence."""
        queue: asyncio.Queue[Page | None] = asyncio.Queue(MAX_PENDING)
        names, seq = list(self._names), self._seq
        self._followers.add(queue)
        try:
            for start in range(0, len(names), NAMES_PER_PAGE):
                yield Page(seq, names[start : start + NAMES_PER_PAGE], snapshot=True)
            names.clear()
            yield Page(seq, snapshot=True, snapshot_end=True)
            while queue in self._followers or not queue.empty():
                try:
                    page = await asyncio.wait_for(queue.get(), pulse_s)
                except TimeoutError:
                    page = Page(self._seq)
                if page is None:
                    return
                yield page
        finally:
            self._followers.discard(queue)
