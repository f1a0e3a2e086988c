"""Store processes that are killed, frozen, cut off and spoilt under load: the rest is found, and nothing wrong is read.

The history checker is tests/support/store_history.py. PANDO_KVSTORE_CHAOS_S: seconds of the long run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from common.cache.kvstore_backend import KvStoreBackend
from common.cache.l3 import State
from tests.support.kvstore_rig import open_registered
from tests.support.l3_contract import BareStore, block_of, fetch, key_of
from tests.support.store_fleet import Registry, StoreCommand, all_killed, leader_of, running_registry, stats_of
from tests.support.store_history import History

SECONDS = float(os.environ.get("PANDO_KVSTORE_CHAOS_S", "15"))
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300 + 2 * SECONDS)]
NUM_NODES, NUM_KEYS = 3, 60
KEYS = [key_of(number) for number in range(NUM_KEYS)]
STALE_S = 3.0
SIZES = ("--segment-size", str(2 << 20), "--page-size", "4096", "--ssd-size", str(32 << 20), "--max-lease-ttl-s", "4")
"""Memory for 256 blocks a node, a log for about 4,000."""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with running_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def url(registry: Registry) -> str:
    return registry.url


def ssd_of(process: StoreCommand, tmp_path: Path) -> Path:
    return tmp_path / process.node_id


def failpoints_of(process: StoreCommand, tmp_path: Path) -> Path:
    return tmp_path / f"{process.node_id}-failpoints"


@pytest.fixture
def processes(url: str, tmp_path: Path) -> Iterator[list[StoreCommand]]:
    started = []
    for number in range(NUM_NODES):
        folders = (
            "--ssd-path",
            str(tmp_path / f"n{number}"),
            "--failpoints-dir",
            str(tmp_path / f"n{number}-failpoints"),
        )
        Path(folders[3]).mkdir()
        started.append(StoreCommand(f"n{number}", url, *SIZES, *folders))
    with all_killed(started):
        yield started


@pytest.fixture
async def backend(url: str, processes: list[StoreCommand]) -> AsyncIterator[KvStoreBackend]:
    backend = await open_registered(url)
    async with asyncio.timeout(20):
        while len(backend._view._processes) < NUM_NODES or await leader_of(url) is None:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)  # the leader's first listings of its nodes
    yield backend
    await backend.close()


async def where(backend: KvStoreBackend) -> dict[str, list[int]]:
    """Numbers of the keys that each address lends."""
    lease = await backend.lookup(KEYS, 5.0)
    found: dict[str, list[int]] = {}
    for index, state in enumerate(lease.states):
        if state is State.HIT:
            found.setdefault(lease._board.hit(index)[0].address, []).append(index)  # type: ignore[attr-defined]
    await lease.close()
    return found


async def fill(store: BareStore) -> None:
    """Put paths of five blocks each until all keys are there."""
    for first in range(0, NUM_KEYS, 5):
        states = await store.put([block_of(key) for key in KEYS[first : first + 5]])
        assert set(states) <= {"stored", "present"}, states


async def timed_fetch(store: BareStore) -> tuple[Counter[State], float]:
    began_s = time.monotonic()
    return Counter(await fetch(store, KEYS)), time.monotonic() - began_s


@pytest.mark.parametrize("who", ["leader", "node"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_rest_is_found_at_once_and_nothing_lies_for_long(
    url: str, processes: list[StoreCommand], backend: KvStoreBackend, who: str, how: signal.Signals
) -> None:
    store = BareStore(backend)
    await fill(store)
    spread = await where(backend)
    assert sum(map(len, spread.values())) == NUM_KEYS and len(spread) > 1, spread
    leader = await leader_of(url)
    victim = next(one for one in processes if (one.node_id == leader) == (who == "leader"))
    address = {one.node_id: one.address for one in backend._view._processes}[victim.node_id]
    lost = len(spread.get(address, []))
    victim.signal(how)
    hit_s = time.monotonic()
    clean_s = None
    while time.monotonic() - hit_s < 2 * STALE_S:
        counts, took_s = await timed_fetch(store)
        assert took_s < STALE_S
        if time.monotonic() - hit_s > 1.0:
            assert counts[State.HIT] >= NUM_KEYS - lost, (counts, lost)
        if clean_s is None and counts[State.ERROR] == 0:
            clean_s = time.monotonic() - hit_s
    print(f"{who} {how.name}: {lost} of {NUM_KEYS} objects lost, the last error within {clean_s} s")
    assert clean_s is not None and clean_s <= STALE_S + 0.5, f"errors for {clean_s} s"
    assert await leader_of(url, but=victim.node_id if who == "leader" else "") is not None
    assert set(await store.put([block_of(key_of(1000 + n)) for n in range(5)])) <= {"stored", "present"}
    victim.signal(signal.SIGCONT if how is signal.SIGSTOP else signal.SIGKILL)


class Adversary:
    """Disturbs a store: one process at a time or two, the leader as often as all others; sometimes the registry."""

    def __init__(self, registry: Registry, processes: list[StoreCommand], folder: Path) -> None:
        self.done = Counter[str]()
        self._registry = registry
        self._processes = processes
        self._folder = folder
        self._rng = random.Random(3)

    async def disturb(self, seconds: float) -> None:
        """One fault after the other; everything is whole again at the end."""
        faults: list[Callable[[StoreCommand], Awaitable[None]]] = [
            self._kill,
            self._kill_and_rot,
            self._freeze,
            self._cut,
            self._end,
            self._registry_fault,
        ]
        deck: list[Callable[[StoreCommand], Awaitable[None]]] = []
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            victims = [await self._victim()]
            if self._rng.random() < 0.3:
                victims.append(self._rng.choice([one for one in self._processes if one is not victims[0]]))
            if len(deck) < len(victims):
                deck = self._rng.sample(faults, len(faults))
            chosen = [deck.pop() for _ in victims]
            self.done.update(fault.__name__ for fault in chosen)
            await asyncio.gather(*(fault(victim) for fault, victim in zip(chosen, victims, strict=True)))
            await asyncio.sleep(self._rng.uniform(0, 2))

    async def _victim(self) -> StoreCommand:
        leader = await leader_of(self._registry.url)
        leaders = [one for one in self._processes if one.node_id == leader]
        return leaders[0] if leaders and self._rng.random() < 0.5 else self._rng.choice(self._processes)

    async def _again(self, victim: StoreCommand) -> None:
        await asyncio.sleep(self._rng.uniform(0, 3))
        victim.start()
        await asyncio.to_thread(victim.wait_ready)

    async def _kill(self, victim: StoreCommand) -> None:
        await asyncio.to_thread(victim.kill)
        await self._again(victim)

    async def _kill_and_rot(self, victim: StoreCommand) -> None:
        """Its disk changes some bytes while nobody looks."""
        await asyncio.to_thread(victim.kill)
        logs = sorted(ssd_of(victim, self._folder).glob("*.log"))
        for path in self._rng.sample(logs, min(2, len(logs))):
            with path.open("r+b") as file:
                for _ in range(5):
                    file.seek(self._rng.randrange(path.stat().st_size))
                    file.write(self._rng.randbytes(3))
        await self._again(victim)

    async def _freeze(self, victim: StoreCommand) -> None:
        victim.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(0.2, 5))
        victim.signal(signal.SIGCONT)

    async def _cut(self, victim: StoreCommand) -> None:
        """Calls to it are lost, fail or come late, while it goes on registering and leading."""
        rule = failpoints_of(victim, self._folder) / "rpc.KvStoreService.*"
        rule.write_text(self._rng.choice(["drop", "50%drop", "fail", "50%fail", "delay(0.4)"]))
        await asyncio.sleep(self._rng.uniform(1, 4))
        rule.unlink()

    async def _end(self, victim: StoreCommand) -> None:
        assert await asyncio.to_thread(victim.end) == 0
        await self._again(victim)

    async def _registry_fault(self, _: StoreCommand) -> None:
        if self._rng.random() < 0.5:
            self._registry.wipe()
            return
        self._registry.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(0.5, 4))
        self._registry.signal(signal.SIGCONT)


async def everything_answers(store: BareStore) -> None:
    """Wait until no read is an error any more."""
    async with asyncio.timeout(20):
        while State.ERROR in await fetch(store, KEYS):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.2)


async def all_on_disk(processes: list[StoreCommand]) -> None:
    async with asyncio.timeout(20):
        while True:
            stats = [await stats_of(one.address) for one in processes]
            if all(one is not None and not one.unwritten_bytes for one in stats):
                return
            await asyncio.sleep(0.1)


async def test_chaos_brings_no_wrong_byte_and_loses_nothing_on_disk(
    registry: Registry, processes: list[StoreCommand], backend: KvStoreBackend, tmp_path: Path
) -> None:
    """Readers and writers of more than fits into memory, and an adversary; then all processes are killed at once."""
    store = BareStore(backend)
    history, adversary = History(store, num_paths=150), Adversary(registry, processes, tmp_path)
    stopping = asyncio.Event()
    clients = [asyncio.create_task(history.work(seed, stopping)) for seed in range(4)]
    try:
        await adversary.disturb(SECONDS)
    finally:
        stopping.set()
        await asyncio.gather(*clients)
    print(dict(adversary.done), dict(history.seen))
    assert history.seen["read hit"] > 5 * SECONDS and history.seen["read corrupt"] == 0, history.seen
    await everything_answers(store)
    for number in range(200, 206):
        assert set(await history.write(number, 5.0)) <= {"stored", "present"}
    await all_on_disk(processes)
    for process in processes:
        process.kill()
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.wait_ready)
    async with asyncio.timeout(20):
        while {one.address for one in backend._view._processes} != {one.address for one in processes}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await everything_answers(store)
    for number in range(200, 206):
        assert await history.read(number) == [State.HIT] * 8, "an object that was on disk is lost"
