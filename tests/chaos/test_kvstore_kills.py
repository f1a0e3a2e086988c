"""Hundreds of kills of a store's node under puts; tests/integration/test_kvstore_kill.py has a few, and the controls.

`PANDO_KVSTORE_KILLS` sets how many (200); the tally is printed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.node_kills import Killer

KILLS = int(os.environ.get("PANDO_KVSTORE_KILLS", "200"))
KILLS_PER_FOLDER = 20
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300 + 10 * KILLS)]


async def test_no_object_is_wrong_and_none_that_was_on_disk_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    for seed, first in enumerate(range(0, KILLS, KILLS_PER_FOLDER)):
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            killer = Killer(Path(folder), seed)
            await killer.run(min(KILLS_PER_FOLDER, KILLS - first))
        with capsys.disabled():
            print(f"\n{killer.tally}", end="", flush=True)
        assert not any(killer.tally.faults.values()), killer.tally
