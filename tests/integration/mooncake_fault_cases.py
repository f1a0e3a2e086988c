"""What happens to the backend `mooncake` when the processes of a real Mooncake Store die or freeze.

Run by test_mooncake_store.py, in a network namespace.
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.base.errors import Unavailable
from common.cache.l3 import PutState
from common.cache.mooncake_store import MooncakeStore
from tests.support import mooncake_rig
from tests.support.l3_contract import (
    ERROR,
    HIT,
    MISS,
    NO_SPACE,
    SPACE,
    STORED,
    BareStore,
    Store,
    block_of,
    fetch,
    key_of,
    targets,
)
from tests.support.mooncake_rig import CLIENT_TTL_S, CONFIG, Rig, frozen


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with mooncake_rig.running(tmp_path) as running:
        yield running


@pytest.fixture
async def store(rig: Rig) -> AsyncIterator[BareStore]:
    backend = MooncakeStore(dataclasses.replace(CONFIG, close_s=20))
    await backend.start()
    yield BareStore(backend)
    await backend.close()


async def test_a_dead_node_is_an_error_and_then_a_miss(rig: Rig, store: BareStore) -> None:
    assert await store.put([block_of(key_of(1))]) == [STORED]
    mooncake_rig.kill(rig.node)
    assert await fetch(store, [key_of(1), key_of(2)]) == [ERROR, MISS], "the master has not noticed yet"
    ends_s = time.monotonic() + 4 * CLIENT_TTL_S
    while await fetch(store, [key_of(1)]) != [MISS]:
        assert time.monotonic() < ends_s
        await asyncio.sleep(0.2)
    assert await store.put([block_of(key_of(1))]) == [NO_SPACE], "nobody lends memory"
    rig.start_node()
    assert await store.put([block_of(key_of(1))]) == [STORED]
    assert await fetch(store, [key_of(1)]) == [HIT]


async def test_a_frozen_node_does_not_freeze_the_reader(rig: Rig, store: BareStore) -> None:
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    with frozen(rig.node):
        landed = targets(1)
        started_s = time.monotonic()
        assert await store.read(lease, [(0, landed[0])], 0.5) == [ERROR]
        assert time.monotonic() - started_s < 2
        before = bytes(landed[0])
    await store.put([block_of(key_of(2))])
    assert await fetch(store, [key_of(2)]) == [HIT]
    assert bytes(landed[0]) == before, "a late byte has landed"


async def test_a_frozen_master_does_not_freeze_anybody(rig: Rig, store: BareStore) -> None:
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    with frozen(rig.master):
        started_s = time.monotonic()
        assert list((await store.lookup([key_of(1)], 0.3)).states) == [ERROR]
        assert await store.read(lease, [(0, targets(1)[0])], 0.3) == [ERROR]
        assert await store.put([block_of(key_of(2))], 0.3) == [PutState.ERROR]
        assert await store.stats() is not None
        assert time.monotonic() - started_s < 5
    assert await fetch(store, [key_of(1)]) == [HIT]


async def test_a_new_master_has_nothing_and_takes_blocks_again(rig: Rig, store: BareStore) -> None:
    await store.put([block_of(key_of(1))])
    mooncake_rig.kill(rig.master)
    assert list((await store.lookup([key_of(1)])).states) == [ERROR]
    with pytest.raises(Unavailable):
        await store.remove_namespace(SPACE)
    rig.start_master()
    ends_s = time.monotonic() + 20
    while await store.put([block_of(key_of(1))]) != [STORED]:
        assert time.monotonic() < ends_s, "the node does not come back"
        await asyncio.sleep(0.1)
    assert await fetch(store, [key_of(1), key_of(2)]) == [HIT, MISS]


def test_the_process_ends_on_time_with_calls_that_hang(rig: Rig) -> None:
    script = """
import asyncio, os, signal
from common.cache.mooncake_store import MooncakeStore
from tests.support.l3_contract import key_of
from tests.support.mooncake_rig import CONFIG
import dataclasses
async def main():
    store, stop = MooncakeStore(dataclasses.replace(CONFIG, close_s=1)), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await store.start()
    print("started", flush=True)
    input()
    await store.lookup([key_of(1)], 0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    await store.close()
    print("closed", flush=True)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        with frozen(rig.master):
            started_s = time.monotonic()
            output, _ = process.communicate("\n", 60)
            took_s = time.monotonic() - started_s
    assert (output, process.returncode) == ("closed\n", 0)
    assert took_s < 20, "it waited for the call"


async def test_without_a_master_the_start_fails_at_once() -> None:
    nobody = MooncakeStore(dataclasses.replace(CONFIG, master_server_address="127.0.0.1:9"))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 cannot be reached: Connection refused"):
        await nobody.start()
    unstarted: Store = BareStore(nobody)
    assert await unstarted.put([block_of(key_of(1))]) == [PutState.ERROR]
    assert await fetch(unstarted, [key_of(1)]) == [ERROR]
    await nobody.close()
