"""The third tier as an interface: a store of KV blocks outside the worker, shared by many, trusted by nobody.

::

    worker tiers ──> L3 = SealedL3 (seal.py: header, checksum, keyed tag, memory of failures)
                        └──> Backend: file_store.py | our KV store | Mooncake   (header and payload are bytes to it)

Workers speak to `L3`. Backend authors implement `Backend`: it stores a fixed-size header with each payload and looks
into neither. Both have the same shape; one contract suite (tests/support/l3_contract.py) runs against each.

Invariants of both:

* A promise is not a hit: a lookup's HIT only means that the lease may be read. A block counts once its read says HIT.
* Faults are answers, not exceptions: only a caller's bug (an assert) or its own cancellation leaves these calls raised.
* Every call returns within about its `deadline_s`, whatever the store does; what has no answer by then is ERROR.
* After `read` has returned, raised or been cancelled, no byte is written into any of its targets any more. After `put`
  likewise payloads may change: what a late thread still reads never becomes an object. Objects are absent or whole.
* Nothing is sorted or dropped: answers come one per key, in the order of the call. Names may repeat within a call.

Knows nothing of tokens, requests, tensors or who may see what: that is in the key's namespace and prefix hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, overload

HEADER_BYTES = 64
"""Bytes that stand before every payload in a store: a multiple of 64, so that payloads stay aligned."""


class State(StrEnum):
    """What became of one key in a lookup or read.

    HIT      lookup: leased, may be read. read: the bytes are in the target (through `L3`: verified).
    MISS     the store does not have it: an answer, not a fault.
    EXPIRED  it was there, but the lease ended or the object was removed before the bytes were read.
    CORRUPT  read only: bytes came, but not what was put (length, key, checksum, tag); the target is undefined.
    ERROR    no answer: fault, deadline, back-off, or nobody to ask; a read's target is undefined.
    """

    HIT = "hit"
    MISS = "miss"
    EXPIRED = "expired"
    CORRUPT = "corrupt"
    ERROR = "error"


class PutState(StrEnum):
    """What became of one block of a put.

    STORED    written by this call; a later lookup finds it until it is evicted.
    PRESENT   was there already; nothing was written (equal keys mean equal bytes).
    NO_SPACE  the store's cap or medium is full and eviction did not help.
    ERROR     fault, deadline or back-off; the block may or may not be there, but never in part.
    """

    STORED = "stored"
    PRESENT = "present"
    NO_SPACE = "no_space"
    ERROR = "error"


class BlockKey(NamedTuple):
    """Name of a block: equal keys mean equal bytes, different settings mean different keys.

    A tuple, since every lookup has hundreds of them: half the time of a frozen dataclass, a quarter with its hash.

    Attributes:
        namespace: digest of everything but tokens that decides the bytes (`common.kv.hashing.namespace`), 1..64 bytes.
        prefix_hash: hash of all tokens up to the block's end, salted by tenant, 1..64 bytes.
        part: layer and head range, 0 <= part < 2**32; 0 is the whole block.
    """

    namespace: bytes
    prefix_hash: bytes
    part: int = 0


class AlikeKeys(Sequence[BlockKey]):
    """Keys that differ in their hash only, as those of a prompt do; each is made when it is asked for.

    Attributes:
        namespace, part: of all.
        hashes: one a key, of one length.
    """

    def __init__(self, namespace: bytes, hashes: Sequence[bytes], part: int) -> None:
        self.namespace = namespace
        self.hashes = hashes
        self.part = part

    @classmethod
    def of(cls, keys: Sequence[BlockKey]) -> AlikeKeys | None:
        """The same keys; None when they are not alike, or none."""
        if isinstance(keys, cls):
            return keys
        if not keys:
            return None
        namespace, prefix_hash, part = keys[0]
        namespaces, hashes, parts = zip(*keys, strict=True)
        num_keys, lengths = len(keys), list(map(len, hashes))
        alike = namespaces.count(namespace), parts.count(part), lengths.count(len(prefix_hash))
        return cls(namespace, hashes, part) if alike == (num_keys,) * 3 else None

    def __len__(self) -> int:
        return len(self.hashes)

    def __iter__(self) -> Iterator[BlockKey]:
        return (BlockKey(self.namespace, one, self.part) for one in self.hashes)

    @overload
    def __getitem__(self, place: int) -> BlockKey: ...
    @overload
    def __getitem__(self, place: slice) -> AlikeKeys: ...
    def __getitem__(self, place: int | slice) -> BlockKey | AlikeKeys:
        if isinstance(place, slice):
            return AlikeKeys(self.namespace, self.hashes[place], self.part)
        return BlockKey(self.namespace, self.hashes[place], self.part)


@dataclass(frozen=True, slots=True)
class L3Stats:
    """What a store holds, as far as it knows without walking it now: may lag behind what other processes did.

    Attributes:
        objects: blocks.
        bytes: headers and payloads together.
        capacity_bytes: the cap; 0 when there is none or nobody knows.
    """

    objects: int
    bytes: int
    capacity_bytes: int = 0


class Lease(Protocol):
    """What a lookup found: readable until closed or expired, even if the store evicts or removes the blocks meanwhile.

    A lease holds something dear (open files, memory of a node): close it soon. Reads of one lease may overlap.

    Attributes:
        states: per key of the lookup, in order: HIT, MISS, EXPIRED or ERROR.
    """

    @property
    def states(self) -> Sequence[State]:
        """One per key of the lookup, in order: HIT, MISS, EXPIRED or ERROR. Does not change after the lookup."""

    async def read(self, wanted: Sequence[tuple[int, memoryview]], deadline_s: float) -> list[State]:
        """Fetch and verify blocks of this lease.

        Args:
            wanted: (index of a key of the lookup, contiguous writable target of exactly the block's bytes).
            deadline_s: seconds from now.

        Returns:
            One per wanted, in order. HIT: the target holds exactly the bytes that were put under this key. A key that
            the lookup did not answer with HIT keeps that answer. After return no target is written any more.
        """

    async def close(self) -> None:
        """Give the lease back; idempotent. Running reads end soon, with EXPIRED for what had not landed."""


class L3(Protocol):
    """A store of blocks as a worker sees it: what it reads is right or is not a HIT."""

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> Lease:
        """Ask for and lease blocks in one batch. Never raises for a store's fault: that is ERROR per key.

        The caller owns the lease and closes it, also when it reads nothing. Up to a few hundred keys.
        """

    async def put(self, blocks: Sequence[tuple[BlockKey, memoryview]], deadline_s: float) -> list[PutState]:
        """Store blocks; idempotent. Payloads are contiguous and must not change until this returns."""

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """Forget blocks whose bytes are as they were put but cannot be right. Best effort, no answer."""

    async def remove_namespace(self, namespace: bytes) -> int:
        """Remove every block of a namespace; returns how many went. Leased ones stay readable.

        Raises:
            Unavailable: the store cannot do it now (leg store); some may be gone.
        """

    async def stats(self) -> L3Stats:
        """What the store holds. Cheap; zeros when it cannot tell."""

    async def close(self) -> None:
        """Release everything; idempotent. Later calls answer ERROR."""


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """A block with its header, as a backend stores it.

    Attributes:
        key: where it goes.
        header: exactly HEADER_BYTES bytes.
        payload: contiguous bytes; must not change until the put returns.
        checksum: xxh3-64 of the payload; None: nobody has computed it yet.
    """

    key: BlockKey
    header: bytes
    payload: memoryview
    checksum: int | None = None


@dataclass(slots=True)
class Slot:
    """Where one object of a lease shall land.

    Attributes:
        index: of the key in the lookup.
        header: writable, exactly HEADER_BYTES bytes.
        payload: writable and contiguous, exactly the payload's bytes.
        seen: set by a backend that has hashed what landed: its xxh3-64, so that nobody need do that twice.
    """

    index: int
    header: memoryview
    payload: memoryview
    seen: int | None = None


class BackendLease(Protocol):
    """As `Lease`, but unverified."""

    @property
    def states(self) -> Sequence[State]:
        """As `Lease.states`."""

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        """As `Lease.read`, with these answers.

        HIT: the object was exactly header + payload long and was copied in full; nobody looked inside, or `Slot.seen`
        says what was found. CORRUPT: the object has another length. The rest as in `Lease.read`.
        """

    async def close(self) -> None:
        """As `Lease.close`."""


class Backend(Protocol):
    """A store under the seal. Used on one asyncio loop; whatever blocks runs elsewhere. Several processes share it."""

    name: str
    """For metrics and logs: "file", "kvstore", "mooncake"."""

    async def start(self) -> None:
        """Open the store. Quick: whatever takes time (counting objects) goes on after it.

        Raises:
            Unavailable: it cannot be opened; the message names the place and the cause.
        """

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> BackendLease:
        """As `L3.lookup`."""

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        """As `L3.put`. An object that is there with another length is replaced and answers STORED."""

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """Forget objects that turned out corrupt, so that the next put writes them anew. Best effort, no answer."""

    async def remove_namespace(self, namespace: bytes) -> int:
        """As `L3.remove_namespace`."""

    async def stats(self) -> L3Stats:
        """As `L3.stats`."""

    async def close(self) -> None:
        """As `L3.close`."""
