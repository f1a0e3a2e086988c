"""Prefix hashes and namespaces: the names under which KV blocks are found, shared and moved.

A prefix hash names a full block *and everything before it*: ``h_i = SHA-256(h_{i-1} || ids of block i)``. Two blocks
with equal hashes therefore hold the KV of equal token histories, and a set of hashes that was filled from the left is
closed under prefixes (who has h_i has h_0 .. h_i-1)::

    root --ids 0..15--> h_0 --ids 16..31--> h_1 --ids 32..47--> h_2        (a partial block has no hash)

Invariants: every variable-length field is length-prefixed, so no two different inputs feed the same bytes; tenants with
different salts share no hash. Knows nothing about blocks, bytes or tiers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256

HASH_BYTES = 32
SCHEMA_VERSION = 1
MAX_ROOTS = 1024
"""Roots that are remembered: most requests have the salt of one before."""

_U32 = struct.Struct("<I")


def _digest(domain: bytes, fields: Iterable[bytes]) -> bytes:
    """SHA-256 over a domain name and fields, each preceded by its length as little-endian u32."""
    digest = sha256()
    for field in (domain, *fields):
        digest.update(_U32.pack(len(field)))
        digest.update(field)
    return digest.digest()


@lru_cache(MAX_ROOTS)
def prefix_root(block_size: int, salt: str, adapter: str = "") -> bytes:
    """Return the 32-byte hash that stands before the first block.

    Args:
        block_size: tokens per block.
        salt: the tenant's salt; "" for the common cache.
        adapter: name and version of the adapter in use; "" for the base model.
    """
    assert block_size > 0, f"block_size {block_size}"
    fields = (_U32.pack(SCHEMA_VERSION), _U32.pack(block_size), salt.encode(), adapter.encode())
    return _digest(b"pando-prefix", fields)


def namespace(
    model_digest: str | bytes,
    weight_version: str | bytes,
    numerics_id: str | bytes,
    kv_dtype: str | bytes,
    layout_digest: str | bytes,
) -> bytes:
    """Return the 32-byte digest of everything but tokens that decides a block's bytes; text counts as UTF-8."""
    fields = (model_digest, weight_version, numerics_id, kv_dtype, layout_digest)
    return _digest(b"pando-namespace", [f.encode() if isinstance(f, str) else f for f in fields])


def block_hashes(root: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Return the hashes of the full blocks of `token_ids`, in order; tokens after the last full block are ignored.

    Args:
        root: hash before the first token: a `prefix_root`, or the hash of the block that ends there.
        token_ids: each in 0 .. 2**32 - 1.
        block_size: tokens per block.
    """
    num_blocks = len(token_ids) // block_size
    packed = struct.pack(f"<{num_blocks * block_size}I", *token_ids[: num_blocks * block_size])
    hashes: list[bytes] = []
    step = 4 * block_size
    for offset in range(0, len(packed), step):
        root = sha256(root + packed[offset : offset + step]).digest()
        hashes.append(root)
    return hashes


def partial_name(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return a 32-byte name for a block that is not full, for where it travels; the index never sees it.

    Args:
        parent: hash of the block before, or the root.
        token_ids: those whose KV is in the block, in order.
    """
    return _digest(b"pando-partial", (parent, struct.pack(f"<{len(token_ids)}I", *token_ids)))


class HashChain:
    """The block hashes of a token sequence that only grows: O(1) amortised per token.

    Attributes:
        hashes: hashes of the full blocks so far, in order. Owned by the chain: read, never write.
    """

    __slots__ = ("_block_size", "_root", "_tail", "hashes")

    def __init__(
        self, root: bytes, block_size: int, token_ids: Sequence[int] = (), known_hashes: Sequence[bytes] = ()
    ) -> None:
        """Start with `token_ids`.

        Args:
            root: the `prefix_root`.
            block_size: tokens per block.
            token_ids: tokens to begin with.
            known_hashes: hashes of leading blocks of `token_ids` that somebody computed already; trusted.
        """
        assert len(root) == HASH_BYTES and block_size > 0, f"root of {len(root)} bytes, block_size {block_size}"
        assert len(known_hashes) * block_size <= len(token_ids), (
            f"{len(known_hashes)} hashes for {len(token_ids)} tokens in blocks of {block_size}"
        )
        self._root = root
        self._block_size = block_size
        self._tail: list[int] = []
        self.hashes = list(known_hashes)
        self.extend(token_ids[len(known_hashes) * block_size :])

    @property
    def num_tokens(self) -> int:
        """Number of tokens so far, with those of the unfinished block."""
        return len(self.hashes) * self._block_size + len(self._tail)

    def append(self, token_id: int) -> None:
        """Add one token."""
        self._tail.append(token_id)
        if len(self._tail) == self._block_size:
            self._fold()

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens in order."""
        self._tail.extend(token_ids)
        if len(self._tail) >= self._block_size:
            self._fold()

    def _fold(self) -> None:
        """Hash the full blocks at the head of the tail."""
        last = self.hashes[-1] if self.hashes else self._root
        new = block_hashes(last, self._tail, self._block_size)
        self.hashes.extend(new)
        del self._tail[: len(new) * self._block_size]
