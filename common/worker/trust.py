"""Which blocks carry a keyed tag between workers, and the one place that makes and checks it.

A tag is made by who lends and checked by who reads, over the namespace, the block's name and its bytes (see
`common.transport.tag`). Blocks that stay on their host go without by default: whoever could change them there could
read the key as well. Without a key nothing is tagged, and the checksum alone guards against accidents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from common.base.errors import BlockCorrupt
from common.transport.base import Extent
from common.transport.tag import Tagger


class TagScope(StrEnum):
    """Which blocks are tagged when there is a key."""

    REMOTE = "remote"
    ALL = "all"


@dataclass(slots=True, frozen=True)
class BlockTrust:
    """The trust of one worker in others.

    Attributes:
        tagger: with the key that the workers share, if they share one.
        namespace: of this worker's KV.
        host_id: of this worker's host.
        scope: which blocks are tagged.
    """

    tagger: Tagger
    namespace: bytes
    host_id: str
    scope: TagScope = TagScope.REMOTE

    def covers(self, peer_host_id: str) -> bool:
        """Whether blocks from or for a peer on that host are tagged."""
        return self.tagger.keyed and (self.scope is TagScope.ALL or peer_host_id != self.host_id)

    def tag(self, name: bytes, data: memoryview) -> bytes:
        """The tag of a block's bytes."""
        return self.tagger.tag(self.namespace, name, data)

    def check(self, extents: Sequence[Extent], names: Sequence[bytes], data: Sequence[memoryview]) -> None:
        """Raise BlockCorrupt unless every extent's tag is that of its name and the bytes that came; blocks."""
        for extent, name, came in zip(extents, names, data, strict=True):
            if not self.tagger.matches(extent.tag, self.namespace, name, came):
                raise BlockCorrupt("a peer's block has no valid tag: is the tag key the same everywhere?")
