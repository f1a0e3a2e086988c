"""How the KV store's RPCs carry names and extents: where protobuf ends, for clients and nodes alike.

A batch has hundreds of keys that share namespace and part, so they travel as runs with concatenated hashes, and what
exists once per key travels as fixed records in one bytes field. Inside the store a key is one bytes object, its name::

    length of the namespace u8 | namespace | part u32 | prefix hash

which is quick to hash and compare, and sorts by namespace. Everything here either gives values in range or raises
InvalidRequest. It does not know what is stored, or where.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise

from common.base.errors import InvalidRequest, Leg
from common.cache.l3 import HEADER_BYTES, AlikeKeys, BlockKey
from common.rpc.frames import Method
from common.transport.base import Endpoint, Extent
from pando.v1 import kvstore_pb2, types_pb2

MAX_KEYS = 4096
MAX_FIELD_BYTES = 64
MAX_INLINE_BYTES = 128 * 1024
"""Of payloads that travel in a message: so few cost less there than a read of their own."""
LEASED = struct.Struct("<QQQQ")
"""offset, length, generation, checksum"""
OFFERED = struct.Struct("<IQQQQ")
"""segment, offset, length, generation, checksum"""
INDEX = struct.Struct("<H")
_PART_BYTES = 4


LOOKUP = Method(
    1, "LookupAndLease", kvstore_pb2.LookupAndLeaseRequest.FromString, kvstore_pb2.LookupAndLeaseResponse.FromString
)
RENEW = Method(2, "Renew", kvstore_pb2.RenewRequest.FromString, kvstore_pb2.RenewResponse.FromString)
RELEASE = Method(3, "Release", kvstore_pb2.ReleaseRequest.FromString, kvstore_pb2.ReleaseResponse.FromString)
PLACE = Method(4, "Place", kvstore_pb2.PlaceRequest.FromString, kvstore_pb2.PlaceResponse.FromString)
PUT = Method(5, "Put", kvstore_pb2.PutRequest.FromString, kvstore_pb2.PutResponse.FromString)
FRAMED = (LOOKUP, RENEW, RELEASE, PLACE, PUT)
"""Methods that processes serve over framed connections too; a number is never given to another."""


class Lookup(IntEnum):
    """LookupState of the contract, as the byte that travels."""

    HIT = 1
    MISS = 2
    EXPIRED = 3
    ERROR = 4
    ELSEWHERE = 5


class Put(IntEnum):
    """PutState of the contract, as the byte that travels."""

    STORED = 1
    PRESENT = 2
    NO_SPACE = 3
    CORRUPT = 4
    ERROR = 5
    QUOTA = 6


def name_of(key: BlockKey) -> bytes:
    """The name of a key."""
    return _head(key.namespace, key.part) + key.prefix_hash


def key_of(name: bytes) -> BlockKey:
    """The inverse of `name_of`."""
    end = 1 + name[0]
    part = int.from_bytes(name[end : end + _PART_BYTES], "little")
    return BlockKey(name[1:end], name[end + _PART_BYTES :], part)


def namespace_of(name: bytes) -> bytes:
    """The namespace in a name."""
    return name[1 : 1 + name[0]]


def prefix_of(namespace: bytes) -> bytes:
    """What the names of a namespace, and no others, begin with. Raises InvalidRequest."""
    require(0 < len(namespace) <= MAX_FIELD_BYTES, f"a namespace of {len(namespace)} bytes")
    return bytes((len(namespace),)) + namespace


def pack_keys(keys: Sequence[BlockKey]) -> list[kvstore_pb2.KeyRun]:
    """Keys as runs, in order."""
    runs: list[kvstore_pb2.KeyRun] = []
    alike = AlikeKeys.of(keys)
    if alike is not None:
        _close_run(runs, (alike.namespace, alike.part, len(alike.hashes[0])), alike.hashes)
        return runs
    kind: tuple[bytes, int, int] | None = None
    hashes: list[bytes] = []
    for key in keys:
        this = (key.namespace, key.part, len(key.prefix_hash))
        if this != kind:
            _close_run(runs, kind, hashes)
            kind, hashes = this, []
        hashes.append(key.prefix_hash)
    _close_run(runs, kind, hashes)
    return runs


def pack_names(names: Iterable[bytes]) -> list[kvstore_pb2.KeyRun]:
    """Names as runs, in order."""
    runs: list[kvstore_pb2.KeyRun] = []
    head, num_bytes, hashes = b"", 0, list[bytes]()
    for name in names:
        end = 1 + _PART_BYTES + name[0]
        if len(name) != num_bytes or not name.startswith(head):
            _close_run(runs, _kind(head, num_bytes), hashes)
            head, num_bytes, hashes = name[:end], len(name), []
        hashes.append(name[end:])
    _close_run(runs, _kind(head, num_bytes), hashes)
    return runs


def unpack_names(runs: Iterable[kvstore_pb2.KeyRun], limit: int = MAX_KEYS) -> list[bytes]:
    """The names in runs, in order.

    Raises:
        InvalidRequest: a field is too long or empty, or there are more than `limit`.
    """
    names: list[bytes] = []
    for run in runs:
        step, hashes = run.hash_bytes, run.hashes
        require(0 < len(run.namespace) <= MAX_FIELD_BYTES, f"a namespace of {len(run.namespace)} bytes")
        whole = 0 < step <= MAX_FIELD_BYTES and len(hashes) >= step and len(hashes) % step == 0
        require(whole, f"{len(hashes)} bytes of hashes of {step}")
        require(len(names) + len(hashes) // step <= limit, f"more than {limit} keys")
        head = _head(run.namespace, run.part)
        names += [head + one for (one,) in struct.iter_unpack(f"{step}s", hashes)]
    return names


def unpack_offers(packed: bytes, incarnation: int, count: int) -> list[Extent]:
    """The extents that a writer offers. Raises InvalidRequest unless there are `count`."""
    require(len(packed) == count * OFFERED.size, f"{len(packed)} bytes of extents for {count} keys")
    return [
        Extent(incarnation, segment, offset, length, generation, checksum)
        for segment, offset, length, generation, checksum in OFFERED.iter_unpack(packed)
    ]


def pack_offers(extents: Iterable[Extent]) -> bytes:
    """The inverse of `unpack_offers`."""
    return b"".join([OFFERED.pack(e.segment, e.offset, e.length, e.generation, e.checksum) for e in extents])


def split_headers(packed: bytes, count: int) -> list[bytes]:
    """The headers of a batch. Raises InvalidRequest unless there are `count`."""
    require(len(packed) == count * HEADER_BYTES, f"{len(packed)} bytes of headers for {count} keys")
    return [packed[at : at + HEADER_BYTES] for at in range(0, len(packed), HEADER_BYTES)]


def split_payloads(packed: bytes, lengths: Iterable[int]) -> list[memoryview]:
    """Payloads that lie one after the other; where there are too few bytes, the last ones are too short."""
    ends = list(accumulate(lengths, initial=0))
    return [memoryview(packed)[start:end] for start, end in pairwise(ends)]


def pack_endpoints(endpoints: Iterable[Endpoint]) -> list[types_pb2.TransportEndpoint]:
    """Endpoints as they travel."""
    return [
        types_pb2.TransportEndpoint(
            driver=one.driver, host_id=one.host_id, incarnation=one.incarnation, descriptor=one.descriptor
        )
        for one in endpoints
    ]


def unpack_endpoints(messages: Iterable[types_pb2.TransportEndpoint]) -> list[Endpoint]:
    """The inverse of `pack_endpoints`."""
    return [Endpoint(one.driver, one.host_id, one.incarnation, one.descriptor) for one in messages]


def _head(namespace: bytes, part: int) -> bytes:
    return bytes((len(namespace),)) + namespace + part.to_bytes(_PART_BYTES, "little")


def _kind(head: bytes, num_bytes: int) -> tuple[bytes, int, int] | None:
    """Namespace, part and length of the hash of names that begin with `head`; None for an empty one."""
    if not head:
        return None
    key = key_of(head)
    return key.namespace, key.part, num_bytes - len(head)


def _close_run(runs: list[kvstore_pb2.KeyRun], kind: tuple[bytes, int, int] | None, hashes: Sequence[bytes]) -> None:
    if kind is not None:
        namespace, part, hash_bytes = kind
        runs.append(kvstore_pb2.KeyRun(namespace=namespace, part=part, hash_bytes=hash_bytes, hashes=b"".join(hashes)))


def require(holds: bool, what: str) -> None:
    """Refuse a call that no client of ours makes. Raises InvalidRequest that says `what` it has, unless it `holds`."""
    if not holds:
        raise InvalidRequest(what, reason="bad_store_request", leg=Leg.STORE)
