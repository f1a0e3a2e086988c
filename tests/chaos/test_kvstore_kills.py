"""Hundreds of kills of a store's node under puts; tests/integration/test_kvstore_kill.py has a few, and the controls.

`PANDO_KVSTORE_KILLS` sets how many (200), and a tenth more in which the log has to give up old objects. Prints tallies.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.node_kills import ROOMY, TIGHT, Killer, Room

KILLS = int(os.environ.get("PANDO_KVSTORE_KILLS", "200"))
KILLS_PER_FOLDER = 20
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300 + 10 * KILLS)]


@pytest.mark.parametrize(("room", "kills"), [(ROOMY, KILLS), (TIGHT, KILLS // 10)], ids=["roomy", "tight"])
async def test_no_object_is_wrong_and_none_that_was_on_disk_is_lost(
    room: Room, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    for seed, first in enumerate(range(0, kills, KILLS_PER_FOLDER)):
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            killer = Killer(Path(folder), seed, room)
            await killer.run(min(KILLS_PER_FOLDER, kills - first))
        with capsys.disabled():
            print(f"\n{killer.tally}", end="", flush=True)
        assert not any(killer.tally.faults.values()), killer.tally
        assert killer.tally.cut > 0, "no kill hit a put"
