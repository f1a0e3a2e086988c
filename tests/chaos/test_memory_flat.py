"""Memory does not grow with the number of requests: not of the workers, their tiers and stores, nor of what is above.

Short requests with nothing in common go through a whole cluster whose tiers are small, so that all of them are full
after the first of these: every later request takes the place of an earlier one in L1, L2, L3 and every index and list
of names. From then on the resident memory of every process stays where it is, and at the end all blocks add up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Cluster
from tests.support.load import Load
from tests.support.tier_client import MAX_L3_FILL, TierClient

CONCURRENCY = 12
SAMPLE_EVERY = 250
LIMIT_MB = 30.0
FLAGS = {
    "max-total-tokens": "8192",
    "hicache-ratio": "2",
    "hicache-storage-backend": "file",
    "hicache-storage-size": "0.02",
    "hicache-prefetch-min-tokens": "16",
    "num-threads": "1",
}


@dataclass(slots=True)
class Growth:
    """Resident memory of every process of a cluster over the requests, in MB."""

    processes: dict[str, psutil.Process]
    samples: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster) -> Growth:
        return cls({service.name: psutil.Process(service.process.pid) for service in cluster.state().services})

    def sample(self) -> None:
        """Look at all processes now."""
        for name, process in self.processes.items():
            self.samples.setdefault(name, []).append(process.memory_info().rss / 1e6)

    def after(self, num_requests: int) -> dict[str, float]:
        """By how much each grew from its mean around that request to its mean at the end; a mean of four samples."""
        first = num_requests // SAMPLE_EVERY
        return {
            name: _mean(values[-4:]) - _mean(values[first - 2 : first + 2]) for name, values in self.samples.items()
        }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("block_size", "num_requests", "num_warm", "limit_mb"),
    [
        pytest.param(16, 2_500, 1_000, 10.0, id="16-short"),
        *(
            pytest.param(
                size, 10_000, 2_000, LIMIT_MB, id=str(size), marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]
            )
            for size in (1, 16, 64)
        ),
    ],
)
def test_memory_is_flat(block_size: int, num_requests: int, num_warm: int, limit_mb: float, tmp_path: Path) -> None:
    flags = FLAGS | {"hicache-storage-dir": str(tmp_path / "store"), "block-size": str(block_size)}
    given = [part for name, value in flags.items() for part in (f"--worker.{name}", value)]
    with Cluster(tmp_path / "run", *given, "--router.remote-prefill-min-tokens", "32") as cluster:
        cluster.wait_serving()
        growth = Growth.of(cluster)
        asyncio.run(_press(cluster, growth, num_requests))
        cluster.check_idle()
        grown = growth.after(num_warm)
        print(f"block size {block_size}: MB after {num_warm} of {num_requests} requests: {grown}")  # for `-s`
        for name in cluster.workers:
            asyncio.run(_check_tiers(cluster.service(name).address))
    assert max(grown.values()) <= limit_mb, f"MB by process after {num_warm} requests: {grown}; all: {growth.samples}"


async def _press(cluster: Cluster, growth: Growth, num_requests: int) -> None:
    """Send requests of 20 to 90 characters (about as many tokens), all different from their first one on."""
    draw = random.Random(3)
    texts = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=draw.randint(20, 90))) for _ in range(num_requests)]
    numbers = iter(range(num_requests))
    async with Load.open(cluster.url, cluster.model) as load:

        async def ask_on() -> None:
            for number in numbers:
                if number % SAMPLE_EVERY == 0:
                    growth.sample()
                reply = await load.ask(texts[number], 2)
                assert reply.is_whole, reply

        await asyncio.gather(*(ask_on() for _ in range(CONCURRENCY)))
    growth.sample()


async def _check_tiers(address: str) -> None:
    """The conservation law holds in every tier, nobody holds anything, and each tier has been full."""
    async with TierClient(address) as client:
        await client.written(within_s=600.0)  # tens of thousands of files, for blocks of one token
        tiers = await client.tiers()
        held = {name: tier.blocks_held for name, tier in tiers.items() if tier.blocks_held}
        assert not held, f"held after all is over: {held}"
        assert tiers["l3"].objects and tiers["l3"].bytes <= tiers["l3"].capacity_bytes * MAX_L3_FILL
        assert 2 * tiers["l1"].blocks_cached > tiers["l1"].blocks_total, "L1 was never under pressure"
