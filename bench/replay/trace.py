"""Request traces in the Mooncake format: one JSON object a line with `timestamp` (ms), `input_length`, `output_length`
(tokens) and `hash_ids`, one id per 512 tokens of the prompt. Equal ids stand for equal prefixes, so an id is a prefix
hash already; the last one may stand for fewer tokens.

A trace block is split into the blocks of the workers; only blocks that the prompt fills have a hash, as in the live
cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

TRACE_BLOCK_TOKENS = 512


@dataclass(slots=True, frozen=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        hashes: prefix hashes of the prompt's full blocks.
    """

    arrival_s: float
    num_input_tokens: int
    num_output_tokens: int
    hashes: tuple[bytes, ...]


class BlockNames:
    """Splits trace blocks into blocks of `block_size` tokens, each with its own hash."""

    def __init__(self, block_size: int) -> None:
        """`block_size` divides the 512 tokens of a trace block."""
        if TRACE_BLOCK_TOKENS % block_size:
            raise ValueError(f"blocks of {block_size} tokens do not divide {TRACE_BLOCK_TOKENS}")
        self._block_size = block_size
        self._parts = TRACE_BLOCK_TOKENS // block_size
        self._known: dict[int, tuple[bytes, ...]] = {}

    def hashes(self, hash_ids: Sequence[int], num_tokens: int) -> tuple[bytes, ...]:
        """Hashes of the full blocks among the first `num_tokens` tokens."""
        names = [name for hash_id in hash_ids for name in self._split(hash_id)]
        return tuple(names[: num_tokens // self._block_size])

    def _split(self, hash_id: int) -> tuple[bytes, ...]:
        names = self._known.get(hash_id)
        if names is None:
            first = hash_id * self._parts
            names = tuple((first + part).to_bytes(8, "big") for part in range(self._parts))
            self._known[hash_id] = names
        return names


def parse_trace(lines: Iterable[str], block_size: int, speedup: float = 1.0) -> Iterator[TraceRequest]:
    """Yield the requests in the order of the lines; arrivals come `speedup` times as fast.

    Raises:
        ValueError: `block_size` does not divide 512, or a line is not of the format.
    """
    names = BlockNames(block_size)
    for line in lines:
        record = json.loads(line)
        num_tokens = int(record["input_length"])
        if num_tokens < 1 or len(record["hash_ids"]) * TRACE_BLOCK_TOKENS < num_tokens:
            raise ValueError(f"{num_tokens} tokens in {len(record['hash_ids'])} blocks")
        yield TraceRequest(
            arrival_s=record["timestamp"] / 1000 / speedup,
            num_input_tokens=num_tokens,
            num_output_tokens=max(int(record["output_length"]), 1),
            hashes=names.hashes(record["hash_ids"], num_tokens),
        )


def read_trace(path: Path, block_size: int, speedup: float = 1.0, limit: int | None = None) -> list[TraceRequest]:
    """Read the first `limit` requests of a file (all when None), in order of arrival."""
    with path.open() as lines:
        requests = list(islice(parse_trace(lines, block_size, speedup), limit))
    return sorted(requests, key=lambda request: request.arrival_s)


def repeat_trace(trace: Sequence[TraceRequest], copies: int) -> list[TraceRequest]:
    """Lay `copies` of the trace over each other, as if so many customers with nothing in common had sent it."""
    laid = [
        TraceRequest(
            one.arrival_s,
            one.num_input_tokens,
            one.num_output_tokens,
            tuple(name + copy.to_bytes(2, "big") for name in one.hashes) if copy else one.hashes,
        )
        for copy in range(copies)
        for one in trace
    ]
    return sorted(laid, key=lambda request: request.arrival_s)


def highest_reuse(trace: Iterable[TraceRequest], block_size: int) -> float:
    """Cached tokens / input tokens with one cache that keeps everything, requests one after the other."""
    seen: set[bytes] = set()
    cached = total = 0
    for request in trace:
        held = next((i for i, name in enumerate(request.hashes) if name not in seen), len(request.hashes))
        cached += min(held, (request.num_input_tokens - 1) // block_size) * block_size
        total += request.num_input_tokens
        seen.update(request.hashes)
    return cached / total if total else 0.0
