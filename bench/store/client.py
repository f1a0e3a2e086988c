"""A client process of the bench: `python -m bench.store.client SPEC`, then one JSON command a line on stdin.

Commands: {"fill": true} stores what will be read and checks that it comes back right; {"op": ..., "size": ...,
"count": ..., "repeats": ...} measures. Answers are JSON lines: seconds of each call, and this process's CPU seconds.
What has to be made or removed for a call lies outside its time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import uvloop

from bench.store.shapes import KIB, NUM_NAMES, Cell, batches

Bytes = npt.NDArray[np.uint8]
_Call = Callable[[], Awaitable[None]]


class Contender(Protocol):
    """A client of a store that is measured. Memory that objects come from and go to is its own, and set up for it."""

    buffers: dict[int, Bytes]
    """By size of an object: [count of a batch, size]."""

    def keys(self, names: Sequence[str]) -> Sequence[Any]:
        """Names as its calls take them; made outside of what is measured."""

    async def get(self, keys: Sequence[Any], size: int) -> None:
        """Fetch into the first buffers of that size."""

    async def put(self, keys: Sequence[Any], size: int) -> None:
        """Store the first buffers of that size."""

    async def exists(self, keys: Sequence[Any]) -> None:
        """Ask whether all are there; they are."""

    async def remove(self, keys: Sequence[Any]) -> None:
        """Remove what a measurement has put."""

    async def close(self) -> None:
        """Hang up."""


class Client:
    """Runs commands on a contender."""

    def __init__(self, name: str, contender: Contender) -> None:
        self._name = name
        self._contender = contender
        self._num_puts = 0

    async def fill(self) -> None:
        """Store what is read later, and check it."""
        for size, count in batches().items():
            keys, buffers = self._keys(size, count), self._contender.buffers[size]
            for number in range(count):
                buffers[number] = _content(size, number)
            await self._contender.put(keys, size)
            buffers[:] = 0
            await self._contender.get(keys, size)
            for number in range(count):
                assert np.array_equal(buffers[number], _content(size, number)), (self._name, size, number)
        smallest = min(batches())
        for first in range(0, NUM_NAMES, batches()[smallest]):
            await self._contender.put(self._exist_keys()[first : first + batches()[smallest]], smallest)

    async def measure(self, cell: Cell) -> dict[str, Any]:
        """Seconds of each call."""
        seconds, cpu_s = [], 0.0
        for number in range(cell.repeats):
            call, after = self._prepare(cell, number)
            cpu_began_s, began_s = time.process_time(), time.perf_counter()
            await call()
            seconds.append(time.perf_counter() - began_s)
            cpu_s += time.process_time() - cpu_began_s
            await after()
        return {"seconds": seconds, "cpu_s": cpu_s / cell.repeats}

    def _prepare(self, cell: Cell, number: int) -> tuple[_Call, _Call]:
        contender = self._contender
        if cell.op == "exists":
            keys = self._exist_keys()[: cell.count]
            return lambda: contender.exists(keys), _nothing
        if cell.op == "get":
            everything = self._keys(cell.size, batches()[cell.size])
            first = number % len(everything) if cell.count == 1 else 0
            wanted = everything[first : first + cell.count]
            return lambda: contender.get(wanted, cell.size), _nothing
        self._num_puts += 1
        new = contender.keys([f"{self._name}/put/{self._num_puts}/{index}" for index in range(cell.count)])
        return lambda: contender.put(new, cell.size), lambda: contender.remove(new)

    def _keys(self, size: int, count: int) -> Sequence[Any]:
        return self._contender.keys([f"{self._name}/{size}/{number}" for number in range(count)])

    def _exist_keys(self) -> Sequence[Any]:
        return self._contender.keys([f"{self._name}/name/{number}" for number in range(NUM_NAMES)])


def _content(size: int, number: int) -> Bytes:
    """Bytes that differ from object to object, and soon made."""
    return np.random.default_rng(size + number).integers(0, 256, 4 * KIB, np.uint8).repeat(size // (4 * KIB))


async def _nothing() -> None:
    return


async def _connect(spec: dict[str, Any]) -> Contender:
    if spec["store"] == "ours":
        from bench.store.ours import connect  # noqa: PLC0415 - a process loads what it needs

        return await connect(spec["address"], tuple(spec["drivers"]))
    from bench.store.mooncake import Mooncake  # noqa: PLC0415

    return Mooncake(spec["address"], spec.get("node", ""))


async def _serve(spec: dict[str, Any]) -> None:
    contender = await _connect(spec)
    client = Client(spec["name"], contender)
    answer: dict[str, Any] = {}
    while True:
        print(json.dumps(answer), flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            break
        command = json.loads(line)
        if "fill" in command:
            await client.fill()
            answer = {}
        else:
            answer = await client.measure(Cell(**command))
    await contender.close()


def main() -> None:
    """Serve commands until stdin ends, on a loop that runs all the time, as a worker's does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
