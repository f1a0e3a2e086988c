"""A cluster loses its KV store under load: no request fails or changes, and the store is used again when it is back.

The workers' own tiers are so small that most prefixes can only come from the store.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.load import Load, Reply, make_prompts

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
STORE = "kvstore-0"
FLAGS = {
    "max-total-tokens": "2048",
    "hicache-storage-prefetch-policy": "wait_complete",
    "hicache-prefetch-min-tokens": "16",
    "num-threads": "1",
}
PROMPTS = make_prompts(24, 71, num_chars=300)
NUM_CLIENTS, MAX_TOKENS = 4, 12


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    given = [part for name, value in FLAGS.items() for part in (f"--worker.{name}", value)]
    with Cluster(tmp_path_factory.mktemp("store-cluster"), "--store", "on", *given) as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """Whole, serving and idle again after every test."""
    _cluster.wait_serving()
    yield _cluster
    _cluster.wait_serving()
    _cluster.check_idle()
    _cluster.check_logs()


def from_store(cluster: Cluster) -> float:
    """Prompt tokens that came from L3 so far."""
    return cluster.metric("router", "pando_router_cached_tokens_total", tier="l3")


def press(cluster: Cluster, disturb: Callable[[], Awaitable[None]]) -> list[Reply]:
    """Clients that ask the same prompts over and over, until `disturb` has ended and the store is read again."""
    replies: list[Reply] = []

    async def client(load: Load, number: int, stopping: asyncio.Event) -> None:
        for prompt in itertools.cycle(PROMPTS[number:] + PROMPTS[:number]):
            if stopping.is_set():
                return
            replies.append(await load.ask(prompt, MAX_TOKENS))

    async def run() -> None:
        stopping = asyncio.Event()
        async with Load.open(cluster.url, cluster.model) as load:
            clients = [asyncio.create_task(client(load, 5 * n, stopping)) for n in range(NUM_CLIENTS)]
            try:
                await until_read(cluster)
                await disturb()
                await until_read(cluster)
            finally:
                stopping.set()
                await asyncio.gather(*clients)

    asyncio.run(run())
    return replies


async def until_read(cluster: Cluster) -> None:
    """Wait until prefixes come from the store."""
    before = await asyncio.to_thread(from_store, cluster)
    ends_s = time.monotonic() + 60
    while await asyncio.to_thread(from_store, cluster) < before + 500:
        assert time.monotonic() < ends_s, "nothing comes from the store"
        await asyncio.sleep(0.2)


def check(replies: list[Reply], what: str, from_s: float) -> None:
    """Every reply is whole, and a prompt has one greedy text whatever happened."""
    broken = [reply for reply in replies if not reply.is_whole]
    assert not broken, broken[:3]
    texts: dict[str, set[str]] = {}
    for reply in replies:
        texts.setdefault(reply.prompt, set()).add(reply.text)
    assert len(texts) == len(PROMPTS) and all(len(some) == 1 for some in texts.values())
    took = sorted(reply.times_s[0] - reply.began_s for reply in replies if reply.began_s > from_s - 1)
    print(f"{what}: {len(replies)} requests, none failed; TTFT p50 {took[len(took) // 2]:.2f} s, max {took[-1]:.2f} s")


def test_killing_the_store_fails_no_request(cluster: Cluster) -> None:
    hit_s = 0.0

    async def kill() -> None:
        nonlocal hit_s
        hit_s = time.monotonic()
        restarts = cluster.kill(STORE)
        await asyncio.to_thread(cluster.wait_restarted, STORE, restarts)
        print(f"the store is back after {time.monotonic() - hit_s:.1f} s")

    check(press(cluster, kill), "killed", hit_s)


def test_freezing_the_store_fails_no_request(cluster: Cluster) -> None:
    hit_s = 0.0

    async def freeze() -> None:
        nonlocal hit_s
        hit_s = time.monotonic()
        cluster.signal(STORE, signal.SIGSTOP)
        try:
            await asyncio.sleep(8)
        finally:
            cluster.signal(STORE, signal.SIGCONT)

    check(press(cluster, freeze), "frozen for 8 s", hit_s)
