"""A store's node killed at random points under puts (tests/support/node_kills.py), and that the count sees faults.

tests/chaos/test_kvstore_kills.py does it hundreds of times.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kvstore_rig import running_store
from tests.support.l3_contract import BareStore, key_of
from tests.support.node_kills import ROOMY, Killer, payload

KILLS = 4
NAMES = range(12)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where possible: what SIGKILL leaves is in the page cache, and the device would only cost time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


async def test_what_was_on_disk_outlives_every_kill_and_nothing_is_wrong(folder: Path) -> None:
    killer = Killer(folder, seed=1)
    await killer.run(KILLS)
    print(killer.tally)
    assert killer.tally.faults == {"wrong": 0, "lost": 0, "failed": 0}, killer.tally
    assert killer.tally.kept > 0, "nothing came to the disk before a kill"


async def test_control_other_bytes_and_lost_objects_are_counted(folder: Path) -> None:
    """A writer that lies, a name that was never written though it was listed, and a log that was spoilt."""
    killer = Killer(folder, seed=1)
    killer.ledger.on_disk = set(NAMES)
    async with running_store(ssd=folder, ssd_size=ROOMY.ssd_bytes, segment_size=1 << 20) as rig:
        store = BareStore(await rig.client())
        objects = {number: payload(number) for number in NAMES[:-1]}
        objects[3] = objects[3][:-1] + bytes([objects[3][-1] ^ 1])
        await store.put([(key_of(number), content) for number, content in objects.items()])
        await killer.check(store, NAMES)
        await store.close()
    assert killer.tally.faults == {"wrong": 1, "lost": 1, "failed": 0}
    spoil(folder, 5)
    again = Killer(folder, seed=1)
    again.ledger.on_disk = set(NAMES[4:-1])
    async with running_store(ssd=folder, ssd_size=ROOMY.ssd_bytes, segment_size=1 << 20) as rig:
        store = BareStore(await rig.client())
        await again.check(store, NAMES[4:-1])
        await store.close()
    assert (again.tally.lost, again.tally.wrong) == (1, 0), "the log itself finds a damaged record"


def spoil(folder: Path, number: int) -> None:
    """Flip a bit of an object on disk."""
    (log,) = folder.glob("*.log")
    content = bytearray(log.read_bytes())
    content[content.index(payload(number)[:64])] ^= 1
    log.write_bytes(content)
