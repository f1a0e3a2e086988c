"""A client of a real Mooncake Store, used directly: its buffers are registered, so it copies no more than it must.

With the address of a node on this host it is a client that shares memory with that node, else one that goes over TCP.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.store.shapes import batches
from common.cache.mooncake_client import connect
from common.cache.mooncake_config import MooncakeConfig


class Mooncake:
    """See `Contender`."""

    def __init__(self, master: str, node: str) -> None:
        num_bytes = sum(size * count for size, count in batches().items())
        if node:
            self._client, memory = _share(node, num_bytes)
        else:
            self._client = connect(MooncakeConfig(master))
            memory = np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)
            assert self._client.register_buffer(memory.ctypes.data, num_bytes) == 0
        self.buffers: dict[int, Any] = {}
        place = 0
        for size, count in batches().items():
            self.buffers[size] = memory[place : place + size * count].reshape(count, size)
            place += size * count

    def keys(self, names: Sequence[str]) -> list[str]:
        """See `Contender.keys`."""
        return list(names)

    async def get(self, keys: Sequence[str], size: int) -> None:
        """See `Contender.get`."""
        codes = self._client.batch_get_into(list(keys), self._addresses(keys, size), [size] * len(keys))
        assert codes == [size] * len(keys), codes

    async def put(self, keys: Sequence[str], size: int) -> None:
        """See `Contender.put`."""
        codes = self._client.batch_put_from(list(keys), self._addresses(keys, size), [size] * len(keys))
        assert not any(codes), codes

    async def exists(self, keys: Sequence[str]) -> None:
        """See `Contender.exists`."""
        codes = self._client.batch_is_exist(list(keys))
        assert codes == [1] * len(keys), codes

    async def remove(self, keys: Sequence[str]) -> None:
        """See `Contender.remove`."""
        self._client.batch_remove(list(keys), True)

    async def close(self) -> None:
        """See `Contender.close`."""
        self._client.close()

    def _addresses(self, keys: Sequence[str], size: int) -> list[int]:
        base = self.buffers[size].ctypes.data
        return [base + number * size for number in range(len(keys))]


def _share(node: str, num_bytes: int) -> tuple[Any, Any]:
    """A client whose memory the node maps: Mooncake's way within a host."""
    from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415 - optional and heavy

    client = MooncakeDistributedStore()
    room = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE + (64 << 20)
    code = client.setup_dummy(room, 16 << 20, node)
    assert code == 0, code
    address = client.alloc_from_mem_pool(num_bytes)
    assert address, "no memory from the pool"
    interface = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}
    memory = np.asarray(_Foreign(interface))
    assert client.register_buffer(address, num_bytes) == 0
    return client, memory


class _Foreign:
    """Memory that numpy shall see."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface
