"""The one checksum of block bytes: XXH3, 64 bit.

It guards against torn, stale and misplaced bytes, not against an attacker. It runs at about 30 GB/s on one core of an
AVX2 machine (360 KiB blocks, in cache) and releases the interpreter lock, so movers may call it freely.
"""

from __future__ import annotations

import xxhash


def checksum(data: bytes | bytearray | memoryview) -> int:
    """XXH3-64 of contiguous bytes, 0 <= result < 2**64."""
    return xxhash.xxh3_64_intdigest(data)
