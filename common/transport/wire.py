"""What drivers say to each other: fixed little-endian records and one status per extent; nothing is ever unpickled.

The same records serve the stream driver (tcp) and the message driver (ucx), so that validation exists once::

    request   magic "PNDR" | token 16 | incarnation u64 | count u32 | count * want
    want      incarnation u64 | segment u32 | generation u64 | offset u64 | length u64

The token is drawn at random by each owner and travels only in its endpoint's descriptor, over the control plane: who
was not given the endpoint cannot read, and stray or hostile bytes are told apart from requests by their first record.

Invariants: parsing any bytes either gives values in range or raises InvalidRequest; no length taken from the wire is
used to allocate. It does not know sockets, threads or regions' memory.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from enum import IntEnum

from common.base.errors import (
    BlockCorrupt,
    InvalidRequest,
    LeaseLost,
    Leg,
    Overloaded,
    PandoError,
    PeerLost,
    StaleIncarnation,
    Unsupported,
)
from common.transport.base import Extent, Read
from common.transport.checksum import checksum

MAX_EXTENTS_PER_READ = 4096
TOKEN_BYTES = 16
_MAGIC = b"PNDR"
_HEAD = struct.Struct(f"<4s{TOKEN_BYTES}sQI")
_WANT = struct.Struct("<QIQQQ")
HEAD_BYTES = _HEAD.size
WANT_BYTES = _WANT.size


class Status(IntEnum):
    """How an owner answers for one extent; the values are part of the protocol."""

    OK = 0
    INVALID = 1
    STALE = 2
    LEASE_LOST = 3
    OVERLOADED = 4
    UNSUPPORTED = 5
    GONE = 6


_ERROR_OF: dict[Status, type[PandoError]] = {
    Status.INVALID: InvalidRequest,
    Status.STALE: StaleIncarnation,
    Status.LEASE_LOST: LeaseLost,
    Status.OVERLOADED: Overloaded,
    Status.UNSUPPORTED: Unsupported,
    Status.GONE: PeerLost,
}


def status_of(error: PandoError) -> Status:
    """The status that tells a reader about an owner's error."""
    for status, kind in _ERROR_OF.items():
        if isinstance(error, kind):
            return status
    return Status.GONE


def raise_for(code: int) -> None:
    """Raise the error that a status stands for; `OK` returns, an unknown code is the peer's fault."""
    if code == Status.OK:
        return
    try:
        kind = _ERROR_OF[Status(code)]
    except ValueError:
        raise PeerLost(f"the peer answered with unknown status {code}", leg=Leg.TRANSFER) from None
    raise kind(f"the owner refused the read: {Status(code).name.lower()}", leg=Leg.TRANSFER)


def check_reads(reads: Sequence[Read]) -> None:
    """Refuse what can never be read, before a byte moves.

    Raises:
        InvalidRequest: too many extents, a field outside its range, or a target that is not a writable contiguous
            view of exactly `length` bytes.
    """
    if len(reads) > MAX_EXTENTS_PER_READ:
        raise invalid(f"{len(reads)} extents in one read, at most {MAX_EXTENTS_PER_READ}")
    for read in reads:
        pack_want(read.source)
        target = read.target
        if target.readonly or not target.c_contiguous or target.nbytes != read.source.length or not target.nbytes:
            raise invalid(f"the target is not a writable view of {read.source.length} contiguous bytes")


def pack_want(extent: Extent) -> bytes:
    """One `want` record. Raises InvalidRequest for fields outside their range."""
    try:
        return _WANT.pack(extent.incarnation, extent.segment, extent.generation, extent.offset, extent.length)
    except struct.error as error:
        raise invalid(f"an extent field is out of range: {error}") from error


def pack_request(token: bytes, incarnation: int, extents: Sequence[Extent]) -> bytes:
    """A whole request; `token` and `incarnation` are the owner's, from its endpoint."""
    return _HEAD.pack(_MAGIC, token, incarnation, len(extents)) + b"".join(map(pack_want, extents))


def unpack_head(data: bytes | memoryview, token: bytes, incarnation: int) -> int:
    """Check the head of a request against the owner's own token and incarnation; returns the number of wants.

    Raises:
        StaleIncarnation: it was meant for another life of this process.
        InvalidRequest: anything else is wrong; the sender is not to be answered any further.
    """
    if len(data) < HEAD_BYTES:
        raise invalid("a request is shorter than its head")
    magic, given, meant_for, count = _HEAD.unpack_from(data)
    check_caller(magic == _MAGIC, given, token, meant_for, incarnation)
    if not 0 < count <= MAX_EXTENTS_PER_READ:
        raise invalid(f"a request for {count} extents, at most {MAX_EXTENTS_PER_READ}")
    return int(count)


def check_caller(known: bool, given: bytes, token: bytes, meant_for: int, incarnation: int) -> None:
    """Check that a record is of a `known` kind, meant for this life of this process, by one who was given its token."""
    if not known:
        raise invalid("not a request")
    if meant_for != incarnation:
        raise StaleIncarnation("the request is for another incarnation", leg=Leg.TRANSFER)
    if not hmac.compare_digest(given, token):
        raise invalid("the request carries a wrong token")


def unpack_wants(data: bytes | memoryview, count: int) -> list[Extent]:
    """The wanted extents (checksum 0: owners are not asked to know it). Raises InvalidRequest for a wrong length."""
    if len(data) != count * WANT_BYTES:
        raise invalid(f"{len(data)} bytes do not hold {count} wanted extents")
    return [
        Extent(incarnation, segment, offset, length, generation, 0)
        for incarnation, segment, generation, offset, length in _WANT.iter_unpack(data)
    ]


def verify(extent: Extent, data: memoryview) -> None:
    """Check arrived bytes against the owner's promise. Raises BlockCorrupt."""
    check_sum(extent, checksum(data))


def check_sum(extent: Extent, found: int) -> None:
    """Check the checksum of arrived bytes against the owner's promise. Raises BlockCorrupt."""
    if found != extent.checksum:
        raise BlockCorrupt(
            f"{extent.length} bytes at {extent.offset} of segment {extent.segment} have checksum {found:#x}, "
            f"promised {extent.checksum:#x}",
            leg=Leg.TRANSFER,
        )


def invalid(message: str) -> InvalidRequest:
    """An InvalidRequest that blames the transfer leg."""
    return InvalidRequest(message, leg=Leg.TRANSFER)
