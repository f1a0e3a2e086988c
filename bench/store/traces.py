"""What the store's own eviction and placement keep of recorded traffic: `python -m bench.store traces FOLDER`.

Each request looks its blocks up in order, is credited with those from its beginning that are there without a gap, and
puts the rest, as a worker does. Only the bytes are missing: tables, order of use, eviction and the choice of a node are
the store's. Beside it: plain LRU over blocks, and no limit at all, which nothing can exceed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from common.cache.kvstore_arena import Arena
from common.cache.kvstore_placement import Candidate, rank
from common.cache.kvstore_wire import name_of
from common.cache.l3 import HEADER_BYTES, BlockKey
from services.kvstore.limits import Limits
from services.kvstore.memory import Object
from services.kvstore.objects import Objects

TRACES = ("conversation", "synthetic")
_BLOCK_BYTES = 64
_NAMESPACE = b"trace"


class Cache(Protocol):
    """Something that keeps blocks."""

    def match(self, path: Sequence[bytes]) -> int:
        """Blocks from the beginning that are there without a gap; they count as used."""

    def insert(self, path: Sequence[bytes], num_there: int) -> None:
        """Keep the blocks behind the first `num_there`."""


class Node:
    """One node's objects in memory."""

    def __init__(self, node_id: str, num_blocks: int) -> None:
        self.node_id = node_id
        arena = Arena(num_blocks * _BLOCK_BYTES, _BLOCK_BYTES)
        self.limit_bytes = num_blocks * (_BLOCK_BYTES + HEADER_BYTES)
        self.objects = Objects(arena, Limits(memory_bytes=self.limit_bytes, max_staged_bytes=self.limit_bytes))

    def candidate(self) -> Candidate:
        """As the leader sees it."""
        free = self.limit_bytes - self.objects.num_bytes
        return Candidate(self.node_id, self.node_id, "", self.limit_bytes, free)

    def put(self, names: Sequence[bytes]) -> None:
        """As `Intake` does it: stage all, then show them, the beginning of the path last."""
        staged = [Object(name, _BLOCK_BYTES, b"-" * HEADER_BYTES) for name in names]
        kept = [one for one in staged if self.objects.stage(one) is None]
        for one in reversed(kept):
            self.objects.commit(one)
        self.objects.take_changes()


class Store:
    """Nodes as a client with a leader uses them."""

    def __init__(self, num_nodes: int, num_blocks: int) -> None:
        """`num_blocks` are those of all nodes together."""
        self._nodes = {f"node-{number}": Node(f"node-{number}", num_blocks // num_nodes) for number in range(num_nodes)}

    def match(self, path: Sequence[bytes]) -> int:
        """See `Cache.match`; a lookup names all blocks, so all that are there count as used."""
        there = set[bytes]()
        for node in self._nodes.values():
            found = [one for one in node.objects.find(path) if one is not None]
            node.objects.touch(found)
            there.update(one.name for one in found)
        return next((index for index, name in enumerate(path) if name not in there), len(path))

    def insert(self, path: Sequence[bytes], num_there: int) -> None:
        """See `Cache.insert`."""
        missing = [
            name for name in path[num_there:] if not any(node.objects.get(name) for node in self._nodes.values())
        ]
        if missing:
            nodes = [node.candidate() for node in self._nodes.values()]
            best = rank(missing[0], len(missing) * _BLOCK_BYTES, "", nodes)[0]
            self._nodes[best.node_id].put(missing)


class Lru:
    """Plain LRU over blocks; without a limit, everything."""

    def __init__(self, num_blocks: int | None) -> None:
        self._limit = num_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def match(self, path: Sequence[bytes]) -> int:
        """See `Cache.match`."""
        return next((index for index, name in enumerate(path) if name not in self._blocks), len(path))

    def insert(self, path: Sequence[bytes], num_there: int) -> None:
        """See `Cache.insert`."""
        for name in path:
            self._blocks[name] = None
            self._blocks.move_to_end(name)
            if self._limit is not None and len(self._blocks) > self._limit:
                self._blocks.popitem(last=False)


def replay(folder: Path, trace: str, cache: Cache, limit: int | None = None) -> float:
    """Share of blocks that were there; of the first `limit` requests, or all."""
    hits = asked = 0
    for path in _paths(folder / f"{trace}_trace.jsonl", limit):
        num_there = cache.match(path)
        cache.insert(path, num_there)
        hits, asked = hits + num_there, asked + len(path)
    return hits / asked


def table(folder: Path) -> list[dict[str, Any]]:
    """Replay both traces with all caches; prints and returns a row per cache."""
    rows = []
    for trace in TRACES:
        everything = len({name for path in _paths(folder / f"{trace}_trace.jsonl", None) for name in path})
        for blocks, label in ((10_000, "10,000"), (everything, "all")):
            row: dict[str, Any] = {"trace": trace, "blocks": label}
            row["lru"] = replay(folder, trace, Lru(blocks))
            for num_nodes in (1, 4):
                # without a limit every node has room for all: which one gets what must not decide
                total = blocks * num_nodes if label == "all" else blocks
                row[f"store_{num_nodes}"] = replay(folder, trace, Store(num_nodes, total))
            rows.append(row)
            cells = "".join(f"{name:>10} {value:7.2%}" for name, value in row.items() if isinstance(value, float))
            print(f"{trace:14}{label:>8} blocks{cells}")
    return rows


def _paths(file: Path, limit: int | None) -> Iterator[list[bytes]]:
    with file.open() as lines:
        for number, line in enumerate(lines):
            if limit is not None and number >= limit:
                return
            ids = json.loads(line)["hash_ids"]
            yield [name_of(BlockKey(_NAMESPACE, one.to_bytes(8, "big"))) for one in ids]
