"""A hundred clients that leave at random points: nothing of them stays anywhere."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.cluster import Cluster
from tests.support.load import Load, make_prompts

CLIENTS = 100
MAX_TOKENS = 400


async def _leave_at_random(cluster: Cluster, seed: int) -> int:
    """Each client leaves before the answer, at its first byte, within it or at its end; returns how many got text."""
    random_ = random.Random(seed)

    async def client(load: Load, prompt: str) -> None:
        await asyncio.sleep(random_.uniform(0, 1.0))
        where = random_.random()
        if where < 0.3:  # before the answer: prompt queued, being computed, or on its way to decode
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(random_.uniform(0, 0.05)):
                    await load.ask(prompt, 3000)
        else:
            await load.ask(prompt, MAX_TOKENS, leave_after=random_.choice((0, 1, 3, 20, None)))

    async with Load.open(cluster.url, cluster.model) as load:
        async with asyncio.TaskGroup() as group:
            for prompt in make_prompts(CLIENTS, seed):
                group.create_task(client(load, prompt))
        return load.started


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.chaos), pytest.param(3, marks=pytest.mark.chaos)]
)
def test_a_hundred_clients_that_leave_at_random_points_leave_nothing(tiny_cluster: Cluster, seed: int) -> None:
    assert asyncio.run(_leave_at_random(tiny_cluster, seed)) > CLIENTS // 4
    tiny_cluster.check_idle(within_s=2.0)
    assert tiny_cluster.metric("router", "pando_router_running_requests") == 0
    assert tiny_cluster.metric("gateway", "pando_gateway_running_requests") == 0
    assert tiny_cluster.metric("router", "pando_router_queued_tokens") == 0
