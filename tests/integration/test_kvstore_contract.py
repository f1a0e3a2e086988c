"""Our own store keeps the L3 contract, over each transport."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.kvstore_rig import running_store
from tests.support.l3_contract import L3Contract, Place


class TestKvStore(L3Contract):
    """One process, clients over shared memory or TCP; its objects outlive its clients."""

    @pytest.fixture(params=["shm", "tcp"])
    async def place(self, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
        drivers = (request.param,)
        async with running_store(drivers=drivers) as rig:
            yield Place(lambda: rig.client(drivers=drivers))
