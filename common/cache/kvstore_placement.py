"""Where new objects go, and which of several copies is read. Pure.

Weighted rendezvous hashing on the first name of a batch: a path's blocks lie together, nodes get work by their room,
and a node that comes or goes moves only its own share. A node on the writer's host comes first while it has room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from common.transport.checksum import checksum

_FULL_WEIGHT = 0.1
"""A full node makes room by eviction, so it counts with a share of its capacity."""


@dataclass(slots=True, frozen=True)
class Candidate:
    """A node that may take objects. Sizes in bytes."""

    node_id: str
    address: str
    host_id: str = ""
    capacity_bytes: int = 1
    free_bytes: int = 1


def rank(first_name: bytes, num_bytes: int, host_id: str, nodes: Iterable[Candidate]) -> list[Candidate]:
    """Nodes for a batch of `num_bytes` that begins with `first_name`, best first."""

    def key(node: Candidate) -> tuple[bool, float]:
        local = bool(host_id) and node.host_id == host_id and node.free_bytes >= num_bytes
        return not local, -_score(first_name, node)

    return sorted(nodes, key=key)


def choose_holder(holders: Sequence[str], local: frozenset[str], client_id: str) -> str:
    """Of several copies the one to read: on the reader's host if there is one, else spread over readers."""
    near = [node for node in holders if node in local]
    among = near or holders
    return among[crc32(client_id.encode()) % len(among)] if len(among) > 1 else among[0]


def _score(name: bytes, node: Candidate) -> float:
    weight = max(1.0, node.free_bytes + _FULL_WEIGHT * node.capacity_bytes)
    drawn = (checksum(name + node.node_id.encode()) + 1) / (2**64 + 1)
    return -weight / math.log(drawn)
