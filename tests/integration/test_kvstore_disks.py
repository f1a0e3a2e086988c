"""Disks that a store process cannot use, or that were spoilt: a line that says so, or a start with what is left."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.cache.l3 import PutState, State
from services.kvstore.config import KvStoreConfig
from services.kvstore.ssd_log import SsdLog
from tests.support.kvstore_rig import running_store
from tests.support.l3_contract import BareStore, block_of, fetch, key_of

ROOT = Path(__file__).parents[2]
KEYS = [key_of(number) for number in range(40)]
SSD_BYTES = 64 << 20


def start_on(path: Path | str) -> tuple[int, list[str]]:
    """Exit status of a store process with that SSD path, and the lines that it complained in."""
    command = [sys.executable, "-m", "services.kvstore", "--registry.url", "", "--ssd-path", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines()


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """A folder that this process has open as a store."""
    log = SsdLog.open(folder, SSD_BYTES)
    try:
        yield folder
    finally:
        log.close()


def test_a_second_store_on_one_folder_is_told_who_has_it(tmp_path: Path) -> None:
    with held(tmp_path / "store") as folder:
        status, (line,) = start_on(folder)
    assert status == 2 and str(folder) in line and "in use by process" in line


@pytest.mark.parametrize("path", ["file", "/proc/pando"], ids=["a file", "not writable"])
def test_a_path_that_is_no_folder_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    status, (line,) = start_on(tmp_path / path)
    assert status == 2 and path in line and "cannot be used" in line


def test_an_empty_path_is_no_disk() -> None:
    assert KvStoreConfig(ssd_path="").ssd_path is None  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["heads", "middles", "halves", "noise", "nothing"])
async def test_a_spoilt_log_costs_objects_and_nothing_else(tmp_path: Path, damage: str) -> None:
    async with running_store(ssd=tmp_path, ssd_size=SSD_BYTES, segment_size=1 << 20) as rig:
        store = BareStore(await rig.client())
        await store.put([block_of(key) for key in KEYS])
        await store.close()
    spoil_all(tmp_path, damage)
    async with running_store(ssd=tmp_path, ssd_size=SSD_BYTES, segment_size=1 << 20) as rig:
        store = BareStore(await rig.client())
        found = [state for key in KEYS for state in await fetch(store, [key])]
        assert set(found) <= {State.HIT, State.MISS, State.ERROR}
        assert (found == [State.HIT] * len(KEYS)) == (damage == "nothing"), "the log was not spoilt"
        assert set(await store.put([block_of(key) for key in KEYS])) <= {PutState.STORED, PutState.PRESENT}
        assert await fetch(store, KEYS) == [State.HIT] * len(KEYS)
        await store.close()


def spoil_all(folder: Path, damage: str) -> None:
    for path in folder.glob("*.log"):
        spoil(path, damage)


def spoil(path: Path, damage: str) -> None:
    rng, size = random.Random(5), path.stat().st_size
    with path.open("r+b") as file:
        match damage:
            case "heads":
                file.write(rng.randbytes(64 * 1024))
            case "middles":
                for _ in range(20):
                    file.seek(rng.randrange(size))
                    file.write(rng.randbytes(64))
            case "halves":
                file.truncate(size // 2)
            case "noise":
                file.write(rng.randbytes(size))
