"""Store processes that are killed and frozen under load: what is left is found at once, and nothing wrong is ever read.

Objects have one value each, so a read is right or it is none: that is the history checker (`fetch` compares bytes).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.cache.kvstore_backend import KvStoreBackend
from common.cache.l3 import State
from common.rpc.registry import STORE, RegistryReader
from pando.cli.local_registry import registry_command
from pando.cli.ports import free_port
from pando.cli.probes import answers_ping
from tests.support.fake_cluster import eventually
from tests.support.kvstore_rig import CLUSTER, open_registered
from tests.support.l3_contract import BareStore, block_of, fetch, key_of

pytestmark = pytest.mark.chaos
ROOT = Path(__file__).parents[2]
NUM_NODES, NUM_KEYS = 3, 60
KEYS = [key_of(number) for number in range(NUM_KEYS)]
STALE_S = 3.0
SECONDS = float(os.environ.get("PANDO_KVSTORE_CHAOS_S", "15"))


class Process:
    """One store process of its own."""

    def __init__(self, number: int, registry_url: str, folder: Path) -> None:
        self.node_id = f"n{number}"
        self._command = [sys.executable, "-m", "services.kvstore", "--node-id", self.node_id, "--transport", "shm,tcp"]
        self._command += ["--registry.url", registry_url, "--registry.cluster", CLUSTER, "--log.format", "json"]
        self._command += ["--segment-size", str(32 << 20), "--ssd-path", str(folder / self.node_id)]
        self._command += ["--ssd-size", str(64 << 20)]
        self.start()

    def start(self) -> None:
        self.popen = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def wait_ready(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            if line.startswith("{") and json.loads(line).get("event") == "ready":
                return
        raise AssertionError(f"{self.node_id} did not start")

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(registry_command(port, tmp_path), stdout=subprocess.DEVNULL)
    eventually(lambda: answers_ping(f"127.0.0.1:{port}"), "a PING's answer")
    yield f"redis://127.0.0.1:{port}/0"
    process.kill()
    process.wait()


@pytest.fixture
def processes(url: str, tmp_path: Path) -> Iterator[list[Process]]:
    started = [Process(number, url, tmp_path) for number in range(NUM_NODES)]
    try:
        for process in started:
            process.wait_ready()
        yield started
    finally:
        for process in started:
            process.kill()


@pytest.fixture
async def backend(url: str, processes: list[Process]) -> AsyncIterator[KvStoreBackend]:
    backend = await open_registered(url)
    async with asyncio.timeout(20):
        while len(backend._view._processes) < NUM_NODES or await leader_of(url) is None:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)  # the leader's first listing of its nodes
    yield backend
    await backend.close()


async def leader_of(url: str, but: str = "") -> str | None:
    """Node id of who says that it leads."""
    reader = RegistryReader(url, CLUSTER, 1.0, STORE)
    try:
        leaders = [record.worker_id for record in await reader.list_workers() if "leader" in record.roles]
    finally:
        await reader.close()
    return next((name for name in leaders if name != but), None)


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
    url: str, processes: list[Process], backend: KvStoreBackend, who: str, how: signal.Signals
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
    assert clean_s is not None and clean_s <= STALE_S + 0.5, f"errors for {clean_s} s"
    assert await leader_of(url, but=victim.node_id if who == "leader" else "") is not None
    assert set(await store.put([block_of(key_of(1000 + n)) for n in range(5)])) <= {"stored", "present"}
    victim.signal(signal.SIGCONT if how is signal.SIGSTOP else signal.SIGKILL)


async def test_chaos_brings_no_wrong_byte(url: str, processes: list[Process], backend: KvStoreBackend) -> None:
    """Several readers and writers, while processes are killed, started again and frozen in turn."""
    rng, seen = random.Random(3), Counter[str]()
    ends_s = time.monotonic() + SECONDS

    async def work(seed: int) -> None:
        draw, store = random.Random(seed), BareStore(backend)
        while time.monotonic() < ends_s:
            first = draw.randrange(0, NUM_KEYS, 5)
            some = KEYS[first : first + 5]
            if draw.random() < 0.4:
                seen.update(await store.put([block_of(key) for key in some], 2.0))
            else:
                seen.update(f"read {state}" for state in await fetch(store, some))
            await asyncio.sleep(0.02)

    async def disturb() -> None:
        while time.monotonic() < ends_s - 3:
            victim = rng.choice(processes)
            if rng.random() < 0.5:
                victim.kill()
                await asyncio.sleep(0.5)
                victim.start()
                await asyncio.to_thread(victim.wait_ready)
            else:
                victim.signal(signal.SIGSTOP)
                await asyncio.sleep(rng.uniform(0.2, 3.0))
                victim.signal(signal.SIGCONT)
            await asyncio.sleep(1.0)

    await asyncio.gather(disturb(), *(work(seed) for seed in range(3)))
    assert seen["read hit"] > 20 and seen["read corrupt"] == 0, seen
    store = BareStore(backend)
    async with asyncio.timeout(20):
        while State.ERROR in await fetch(store, KEYS):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.2)
