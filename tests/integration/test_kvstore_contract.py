"""Our own store keeps the L3 contract, over each transport."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.kvstore_rig import running_store
from tests.support.l3_contract import L3Contract, Place


class TestKvStore(L3Contract):
    """One process, clients over shared memory or TCP, or with few bytes in the answers; its objects outlive them."""

    @pytest.fixture(params=[("shm", 0), ("tcp", 0), ("tcp", 128 * 1024)], ids=["shm", "tcp", "inline"])
    async def place(self, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
        driver, inline_bytes = request.param
        async with running_store(drivers=(driver,)) as rig:
            yield Place(lambda: rig.client(drivers=(driver,), inline_bytes=inline_bytes))
