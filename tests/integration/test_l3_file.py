"""Several processes on one L3 folder: nobody sees wrong or partial blocks, whoever writes, evicts or dies."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from common.cache.l3 import HEADER_BYTES, State
from tests.support.l3_contract import BLOCK_BYTES, CAPACITY_BYTES, SPACE, fetch, key_of, targets
from tests.support.l3_file_worker import NUM_KEYS, open_store

ROOT = Path(__file__).parents[2]
OBJECT_BYTES = HEADER_BYTES + BLOCK_BYTES
KEYS = [key_of(number) for number in range(NUM_KEYS)]


def start(folder: Path, seed: int, num_rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.l3_file_worker", str(folder), str(seed), str(num_rounds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def sizes(folder: Path) -> list[int]:
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # renamed by a worker meanwhile
            found += [path.stat().st_size] if path.is_file() else []
    return found


def whole(folder: Path) -> list[Path]:
    """Blocks that were written to their end."""
    return [path for path in folder.glob("*/*/*") if not path.name.startswith(".tmp-")]


def finish(workers: list[subprocess.Popen[str]]) -> list[dict[str, int]]:
    reports = []
    for worker in workers:
        out, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        reports.append(json.loads(out.splitlines()[-1]))
    return reports


def test_workers_share_blocks_and_the_cap(tmp_path: Path) -> None:
    folder = tmp_path / "l3"
    reports = finish([start(folder, seed, 60) for seed in range(3)])
    for report in reports:
        assert report["damage"] == report.get("error", 0) == report.get("corrupt", 0) == 0
        assert report["hit"] > 0 and report["stored"] > 0
    assert set(sizes(folder)) == {OBJECT_BYTES}, "something partial stayed"
    assert sum(sizes(folder)) <= CAPACITY_BYTES + 3 * OBJECT_BYTES


async def test_a_killed_writer_leaves_whole_blocks_and_sweepable_rests(tmp_path: Path) -> None:
    folder = tmp_path / "l3"
    for seed in range(6):
        worker = start(folder, seed, 0)
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        before = len(sizes(folder))
        while len(sizes(folder)) == before < 3 or (seed == 0 and not whole(folder)):
            assert worker.poll() is None
        worker.kill()
        worker.communicate()
    for path in folder.rglob(".tmp-*"):
        os.utime(path, (time.time() - 3600,) * 2)
    store = await open_store(str(folder))
    states = await fetch(store, KEYS)
    assert set(states) <= {State.HIT, State.MISS} and State.HIT in states
    await store.close()
    store = await open_store(str(folder))
    await store.l3._backend.counted()  # type: ignore[attr-defined]
    assert not list(folder.rglob(".tmp-*"))
    assert (await store.stats()).objects == states.count(State.HIT)
    await store.close()


async def test_a_lease_outlives_what_another_process_removes(tmp_path: Path) -> None:
    folder = tmp_path / "l3"
    finish([start(folder, 1, 30)])
    mine, other = await open_store(str(folder)), await open_store(str(folder))
    lease = await mine.lookup(KEYS)
    hits = [index for index, state in enumerate(lease.states) if state is State.HIT]
    assert hits
    assert await other.remove_namespace(SPACE) == len(hits)
    assert await mine.read(lease, list(zip(hits, targets(len(hits)), strict=True))) == [State.HIT] * len(hits)
    await lease.close()
    assert set(await fetch(mine, KEYS)) == {State.MISS}
    assert sizes(folder) == []
    await mine.close()
    await other.close()
