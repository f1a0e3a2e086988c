"""The one interface by which block bytes move between processes: a read by the one who needs them.

Owners `register` a region and hand out `Extent`s (never pointers) over the control plane, under a lease whose life is
a gRPC stream. Readers call `read`. Nothing foreign ever writes a block: a driver only writes into the reader's own
`Read.target`, and after `read` has returned or raised, no byte is written there any more.

Drivers know nothing of requests, keys or leases. Liveness comes from the control plane; every call has a deadline.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.transport.region import Region

DRIVER_NAMES = ("shm", "ucx", "tcp")
"""Best first."""

STREAMS = min(4, len(os.sched_getaffinity(0)))
"""Reads of one batch from one peer that are worth running at a time: each keeps a thread busy on either side."""

TOO_LARGE = "extent_too_large"
"""Reason of an Unsupported that speaks of the extents of one read, not of the peer."""


@dataclass(slots=True, frozen=True)
class Extent:
    """A lent span of a peer's region.

    Attributes:
        incarnation: life of the owner process that lent it.
        segment: id of the owner's registered region.
        offset: bytes from the start of the region's data.
        length: bytes.
        generation: the owner's count of reuses of this block; another value means other bytes.
        checksum: xxh3-64 of the bytes, as promised by the owner.
        tag: keyed tag of the bytes under their name; empty where none is needed. Drivers do not look at it.
    """

    incarnation: int
    segment: int
    offset: int
    length: int
    generation: int
    checksum: int
    tag: bytes = b""


@dataclass(slots=True, frozen=True)
class Endpoint:
    """How to reach a peer through one driver; travels as protobuf in handshakes.

    Attributes:
        driver: "shm", "ucx" or "tcp".
        host_id: boot id and namespace of the owner's host; shm needs equality.
        incarnation: life of the owner process.
        descriptor: driver-specific bytes, untrusted where they arrive.
    """

    driver: str
    host_id: str
    incarnation: int
    descriptor: bytes


@dataclass(slots=True, frozen=True)
class Read:
    """One wanted copy: `source` at the peer into `target`, a writable view of exactly `source.length` bytes."""

    source: Extent
    target: memoryview


class Transport(Protocol):
    """A driver. Created and used on one asyncio loop; copies and waits run in its own threads."""

    name: str

    def register(self, region: Region) -> int:
        """Make a region readable for peers; returns its segment id. The region must outlive the driver.

        Ids count from 1 in order of registration, so that they are equal across drivers.
        """

    def endpoint(self) -> Endpoint:
        """The address that peers need to read from here (valid once started)."""

    async def start(self) -> None:
        """Open listeners and threads. Raises PandoError(Unsupported) when the machine cannot run this driver."""

    async def read(self, peer: Endpoint, reads: Sequence[Read], deadline_s: float) -> None:
        """Copy all extents within `deadline_s` seconds from now, verify each; all or an error.

        Verified are length, generation (before and after the copy) and checksum.

        Raises:
            PeerLost: the peer died, froze or hung up within the deadline (leg transfer).
            StaleIncarnation: the peer is another life of the process.
            LeaseLost: a generation differs: the owner reused the block.
            BlockCorrupt: a checksum differs.
            InvalidRequest: the descriptor or an extent makes no sense.
            Overloaded: more reads wait than the driver allows, or none of its threads became free in time.
            Unsupported: this driver cannot reach this peer; another may.
        After any return, raised or not, no further byte is written into any target.
        """

    async def close_peer(self, peer: Endpoint) -> None:
        """Drop connections, mappings and registrations for a peer; unknown peers are fine."""

    async def close(self) -> None:
        """Stop everything; running reads fail with PeerLost. Safe to repeat, and when not started."""
