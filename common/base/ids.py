"""Identifiers: who a process is, and which life of it; request ids and seeds.

The only place that draws randomness outside the sampler.
"""

from __future__ import annotations

import os
import secrets


def new_incarnation() -> int:
    """A random 63-bit number for one life of a process; never 0."""
    return secrets.randbits(63) | 1


def new_request_id() -> str:
    """An id for a request whose caller gave none."""
    return f"req-{os.urandom(12).hex()}"


def new_seed() -> int:
    """A 63-bit seed for a request that brings none."""
    return int.from_bytes(os.urandom(8)) >> 1


def new_worker_id(role: str) -> str:
    """A worker's name for logs and metrics: its first role and four random bytes."""
    return f"{role}-{secrets.token_hex(4)}"
