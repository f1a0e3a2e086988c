"""A store with many objects: a node that is lost, a leader that is lost, a leader that wakes up again.

Sizes come from the environment: PANDO_KVSTORE_OBJECTS, of all nodes together. Everything is a process of its own and
every lookup a real one; only the nodes' first objects did not come through puts (tests/support/seeded_store.py).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest

from common.base.errors import Leg
from common.cache import kvstore_wire as wire
from common.cache.kvstore_backend import KvStoreBackend
from common.cache.l3 import State
from common.rpc.errors import from_rpc_error
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.kvstore_rig import open_registered
from tests.support.seeded_store import flags_for, seeded_key
from tests.support.store_fleet import (
    SEEDED,
    Registry,
    StoreCommand,
    all_killed,
    leader_of,
    running_registry,
    stats_of,
    until_complete,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
OBJECTS = int(os.environ.get("PANDO_KVSTORE_OBJECTS", "1000000"))
BATCH = 48
PAUSE_S = 0.005
LEADER_S = 3.0


class Fleet:
    """Nodes with `each` objects and masters without any; the first master is started before the others."""

    def __init__(self, registry: Registry, num_nodes: int, num_masters: int, each: int) -> None:
        self.registry = registry
        self.url = url = registry.url
        self.each = each
        self.nodes = [
            StoreCommand(f"n{n}", url, *flags_for(each, n * each), "--roles", "node", module=SEEDED)
            for n in range(num_nodes)
        ]
        self.masters = [StoreCommand(f"m{n}", url, "--roles", "master") for n in range(num_masters)]

    @property
    def all(self) -> list[StoreCommand]:
        """Every process."""
        return [*self.nodes, *self.masters]

    async def leader(self, but: str = "") -> StoreCommand:
        """Whichever master says that it leads, once one does."""
        async with asyncio.timeout(20):
            while (name := await leader_of(self.url, but)) is None:  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.02)
        return next(one for one in self.masters if one.node_id == name)


@contextmanager
def fleet_of(folder: Path, num_nodes: int, num_masters: int, each: int) -> Iterator[Fleet]:
    with ExitStack() as stack:
        fleet = Fleet(stack.enter_context(running_registry(folder)), num_nodes, num_masters, each)
        stack.enter_context(all_killed(fleet.all))
        yield fleet


@asynccontextmanager
async def client_of(fleet: Fleet) -> AsyncIterator[KvStoreBackend]:
    """A client that knows all processes and their leader."""
    async with AsyncExitStack() as stack:
        backend = await open_registered(fleet.url)
        stack.push_async_callback(backend.close)
        async with asyncio.timeout(20):
            while len(backend._view._processes) < len(fleet.all) or backend._view.leader(backend.now_s()) is None:  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.05)
        yield backend


class Pressing:
    """One client that looks batches up, one after another, and notes how long each took and what it said."""

    def __init__(self, backend: KvStoreBackend, fleet: Fleet) -> None:
        self._backend = backend
        self._fleet = fleet
        self._rng = random.Random(5)
        self.lookups: list[tuple[float, float, Counter[State], int]] = []

    async def press(self) -> None:
        """For ever."""
        each = self._fleet.each
        while True:
            node = self._rng.randrange(len(self._fleet.nodes))
            first = node * each + self._rng.randrange(each - BATCH)
            began_s = time.monotonic()
            lease = await self._backend.lookup([seeded_key(first + n) for n in range(BATCH)], 2.0)
            self.lookups.append((began_s, time.monotonic() - began_s, Counter(lease.states), node))
            await lease.close()
            await asyncio.sleep(PAUSE_S)

    def between(self, from_s: float, to_s: float, what: str) -> float:
        """Print how long lookups took that began between; returns the 99th of a hundred, in ms."""
        took_ms = sorted(1e3 * took for began, took, _, _ in self.lookups if from_s <= began < to_s)
        assert len(took_ms) > 100, f"{what}: only {len(took_ms)} lookups"
        p50, p99 = took_ms[len(took_ms) // 2], took_ms[int(len(took_ms) * 0.99)]
        print(f"{what}: {len(took_ms)} lookups, p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {took_ms[-1]:.1f} ms")
        return p99


async def test_lookups_go_on_while_a_lost_node_is_cleaned_up(tmp_path: Path) -> None:
    """A million names over four nodes, one of which dies and comes back: the leader forgets and learns meanwhile."""
    with fleet_of(tmp_path, 4, 1, OBJECTS // 4) as fleet:
        (leader,) = fleet.masters
        stats = await until_complete(leader, 4, 120)
        assert stats.directory_objects == OBJECTS // 4 * 4
        print(f"leader {leader.rss_mb():.0f} MB, node {fleet.nodes[0].rss_mb():.0f} MB")
        async with client_of(fleet) as backend:
            pressing = Pressing(backend, fleet)
            task = asyncio.create_task(pressing.press())
            marks = [time.monotonic()]
            await asyncio.sleep(6)
            victim = fleet.nodes[2]
            await asyncio.to_thread(victim.kill)
            marks.append(time.monotonic())
            await asyncio.sleep(8)
            marks.append(time.monotonic())
            victim.start()
            await asyncio.to_thread(victim.wait_ready)
            await until_complete(leader, 4, 60)
            marks.append(time.monotonic())
            await asyncio.sleep(5)
            task.cancel()
        told = [
            (began, states) for began, _, states, node in pressing.lookups if node == 2 and marks[1] < began < marks[2]
        ]
        lies = [began - marks[1] for began, states in told if states[State.MISS] != BATCH]
        print(f"{len(told)} lookups of what was lost; no clean miss for {max(lies, default=0):.2f} s")
        assert max(lies, default=0) <= 3.5
        others = [states for began, _, states, node in pressing.lookups if node != 2]
        assert all(states[State.HIT] == BATCH for states in others), "a living node's object was not found"
        usual = pressing.between(marks[0], marks[1], "before")
        lost = pressing.between(marks[1], marks[2], "while it is cleaned up")
        pressing.between(marks[2], marks[3], "while it comes back")
        pressing.between(marks[3], time.monotonic(), "after")
        assert lost < max(20.0, 1.5 * usual), f"p99 of {lost:.1f} ms, {usual:.1f} before"


async def all_found(backend: KvStoreBackend, count: int) -> Counter[State]:
    """What is said of every object there should be."""
    states = Counter[State]()
    for first in range(0, count, 4000):
        lease = await backend.lookup([seeded_key(number) for number in range(first, min(count, first + 4000))], 10.0)
        states.update(lease.states)
        await lease.close()
    return states


async def until_it_answers(leader: StoreCommand, count: int) -> None:
    """Wait until a leader that has no objects itself names the node of one."""
    request = kvstore_pb2.LookupAndLeaseRequest(keys=wire.pack_keys([seeded_key(count // 3)]))
    async with grpc.aio.insecure_channel(leader.address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        async with asyncio.timeout(20):
            while not (await stub.LookupAndLease(request, timeout=5)).nodes:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_another_leader_serves_soon_and_loses_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """100,000 objects on two nodes. Clients find all of them all the time; a leader names them again within 3 s."""
    each = min(50_000, OBJECTS // 2)
    with fleet_of(tmp_path, 2, 2, each) as fleet:
        old = await fleet.leader()
        await until_complete(old, 2)
        async with client_of(fleet) as backend:
            pressing = Pressing(backend, fleet)
            task = asyncio.create_task(pressing.press())
            await asyncio.sleep(1)
            old.signal(how)
            lost_s = time.monotonic()
            new = await fleet.leader(but=old.node_id)
            elected_s = time.monotonic() - lost_s
            await until_it_answers(new, 2 * each)
            first_s = time.monotonic() - lost_s
            await until_complete(new, 2)
            print(
                f"{how.name}: another leads after {elected_s:.2f} s, names objects after {first_s:.2f} s, "
                f"all {2 * each} after {time.monotonic() - lost_s:.2f} s"
            )
            assert first_s <= LEADER_S and time.monotonic() - lost_s <= 10
            task.cancel()
            assert all(states[State.HIT] == BATCH for _, _, states, _ in pressing.lookups), "not found for a while"
            assert await all_found(backend, 2 * each) == {State.HIT: 2 * each}


async def refusals(fleet: Fleet, term: int) -> list[str]:
    """What each node says to a leader of that term that is none."""
    reasons = []
    for node in fleet.nodes:
        async with grpc.aio.insecure_channel(node.address) as channel:
            stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
            try:
                async for _ in stub.WatchInventory(
                    kvstore_pb2.WatchInventoryRequest(term=term, leader_id="old"), timeout=5
                ):
                    reasons.append("followed")
                    break
            except grpc.aio.AioRpcError as error:
                reasons.append(from_rpc_error(error, Leg.STORE).reason)
    return reasons


async def test_a_leader_that_wakes_up_is_refused_even_after_the_registry_was_wiped(tmp_path: Path) -> None:
    """The nodes never go back to an old term, nor follow two leaders in one; who leads in the old one is refused."""
    with fleet_of(tmp_path, 2, 2, 1000) as fleet:
        old = await fleet.leader()
        old_term = (await until_complete(old, 2)).term
        old.signal(signal.SIGSTOP)
        new = await fleet.leader(but=old.node_id)
        new_term = (await until_complete(new, 2)).term
        assert new_term > old_term
        fleet.registry.wipe()
        old.signal(signal.SIGCONT)
        followed, terms = dict[int, set[str]](), list[int]()
        ends_s = time.monotonic() + 6
        while time.monotonic() < ends_s:
            for node in fleet.nodes:
                stats = await stats_of(node.address)
                assert stats is not None
                followed.setdefault(stats.term, set()).add(stats.leader_id)
            terms.append(max(followed))
        assert terms[0] >= new_term and min(followed) >= new_term, followed
        assert all(len(names) == 1 for names in followed.values()), "two leaders of one term"
        assert await refusals(fleet, old_term) == ["stale_term"] * 2
        last = await fleet.leader()
        assert (await until_complete(last, 2)).term == terms[-1]
