"""A worker joins a cluster that runs, changes its role under load, leaves again: no request fails, every text is right.

Streams that ran for a role that is given up go on elsewhere; `drain_s=0` makes them do so at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.load import Load, Reply, make_prompts, undisturbed
from tests.support.role_calls import set_role
from tests.support.workers import WorkerProcess, Workers, wait_until

EXTRA = "extra"
CLIENTS, MAX_TOKENS = 4, 100


@pytest.fixture
def joined(fragile_cluster: Cluster) -> Iterator[tuple[Cluster, WorkerProcess]]:
    """Two prefill workers and a decode worker; one of the former came later and leaves at the end."""
    registry = fragile_cluster.state().registry
    with Workers(registry__url=registry, worker_id=EXTRA, max_total_tokens="32768") as workers:
        extra = workers.start("prefill")
        wait_for_roles(fragile_cluster, EXTRA, ["prefill"])
        yield fragile_cluster, extra
    wait_until(lambda: EXTRA not in roles_seen(fragile_cluster), 10.0, lambda: "the router still lists it")


def roles_seen(cluster: Cluster) -> dict[str, list[str]]:
    """Roles of the ready workers, as the router sees them."""
    return {one.worker_id: list(one.roles) for one in cluster.known_workers() if one.state == "ready"}


def wait_for_roles(cluster: Cluster, name: str, roles: list[str]) -> None:
    wait_until(lambda: roles_seen(cluster).get(name) == roles, 10.0, lambda: f"{roles_seen(cluster)}")


async def flip(cluster: Cluster, load: Load, extra: WorkerProcess, times: int) -> None:
    """Change its role again and again, with answers of every constellation in between."""
    for turn in range(times):
        role = "prefill" if turn % 2 else "decode"
        await set_role(extra.address, role, drain_s=0.0 if turn % 3 else None)
        await asyncio.to_thread(wait_for_roles, cluster, EXTRA, [role])
        await load.until_started(load.started + CLIENTS)


def press_and_flip(cluster: Cluster, extra: WorkerProcess, prompts: list[str], times: int) -> list[Reply]:
    """Clients that ask the same prompts again and again while the worker changes its role."""

    async def run() -> list[Reply]:
        stopping, replies = asyncio.Event(), list[Reply]()

        async def client(load: Load, prompt: str) -> None:
            while not stopping.is_set():
                replies.append(await load.ask(prompt, MAX_TOKENS))

        async with Load.open(cluster.url, cluster.model) as load:
            clients = [asyncio.ensure_future(client(load, prompt)) for prompt in prompts]
            try:
                await load.until_started(CLIENTS)
                await flip(cluster, load, extra, times)
            finally:
                stopping.set()
                await asyncio.gather(*clients)
        return replies

    return asyncio.run(run())


def check(replies: list[Reply], prompts: list[str], texts: list[str]) -> None:
    expected = dict(zip(prompts, texts, strict=True))
    broken = [reply for reply in replies if not reply.is_whole]
    assert not broken, f"{len(broken)} of {len(replies)}: {broken[:3]}"
    wrong = [reply for reply in replies if reply.text != expected[reply.prompt]]
    assert not wrong, f"{len(wrong)} of {len(replies)} texts differ"


def test_a_worker_joins_changes_its_role_under_load_and_leaves(joined: tuple[Cluster, WorkerProcess]) -> None:
    cluster, extra = joined
    prompts = make_prompts(CLIENTS, 61, num_chars=200)
    texts = undisturbed(cluster.url, cluster.model, prompts, MAX_TOKENS)
    replies = press_and_flip(cluster, extra, prompts, times=2)
    check(replies, prompts, texts)
    assert extra.metric("pando_worker_role_changes_total") == 2
    assert extra.metric("pando_worker_generated_tokens_total") > 0, "nobody used it"
    again = [reply.cached_tokens > 0 for reply in replies if reply.began_s > replies[0].ended_s]
    assert sum(again) > len(again) / 2, f"{sum(again)} of {len(again)} prompts that came before found their blocks"


@pytest.mark.chaos
def test_twenty_changes_under_streams_lose_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--prefill-workers", "2", "--decode-workers", "2") as cluster:
        prompts = make_prompts(CLIENTS, 62, num_chars=400)
        texts = undisturbed(cluster.url, cluster.model, prompts, MAX_TOKENS)
        registry = cluster.state().registry
        with Workers(registry__url=registry, worker_id=EXTRA, max_total_tokens="32768") as workers:
            extra = workers.start("prefill")
            wait_for_roles(cluster, EXTRA, ["prefill"])
            replies = press_and_flip(cluster, extra, prompts, times=20)
            check(replies, prompts, texts)
            assert len(replies) >= 20 * CLIENTS and cluster.metric("router", "pando_router_migrations_total") > 0
