"""What the SSD log costs over a plain file: `python bench/ssd.py [FOLDER]`.

Appends and reads 360 KiB objects through the log and, in turn with it, the same bytes with pwrite and pread on a plain
file, in one thread and through the page cache: without a sync (less than two log files, so that the log does not sync
either), with a sync after all, and with one after every 8. Medians of the rounds; the ratios are what counts. Prints
JSON, which also says how long opening a log of so many small objects takes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common.cache.l3 import HEADER_BYTES, BlockKey, PutState
from services.kvstore.ssd_log import SsdLog
from services.kvstore.ssd_options import SsdOptions, SyncPolicy

OBJECT_BYTES = 360 * 1024
NUM_OBJECTS = 304
BATCH = 8
ROUNDS = 7
KEYS = [BlockKey(b"bench", number.to_bytes(32, "little")) for number in range(NUM_OBJECTS)]
Steps = dict[str, Callable[[], object]]


def raw_steps(path: Path, payload: memoryview, target: memoryview) -> Steps:
    """A plain file: appended to, synced, read."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def append() -> None:
        for number in range(NUM_OBJECTS):
            os.pwrite(fd, payload, number * OBJECT_BYTES)

    def append_synced() -> None:
        os.ftruncate(fd, 0)
        for number in range(NUM_OBJECTS):
            os.pwrite(fd, payload, number * OBJECT_BYTES)
            if number % BATCH == BATCH - 1:
                os.fdatasync(fd)

    def read() -> None:
        for number in range(NUM_OBJECTS):
            os.preadv(fd, [target], number * OBJECT_BYTES)

    return {
        "append": append,
        "sync after": lambda: os.fdatasync(fd),
        "read": read,
        f"append, sync each {BATCH}": append_synced,
        "": lambda: os.close(fd),
    }


def log_steps(folder: Path, payload: memoryview, target: memoryview) -> Steps:
    """The same through the log."""
    capacity_bytes = 8 * NUM_OBJECTS * OBJECT_BYTES
    log = SsdLog.open(folder / "log", capacity_bytes, SsdOptions(sync=SyncPolicy.NONE))
    synced = SsdLog.open(folder / "synced", capacity_bytes, SsdOptions(sync=SyncPolicy.BATCH))
    header = bytes(HEADER_BYTES)
    header_target = memoryview(bytearray(HEADER_BYTES))

    def append() -> None:
        for key in KEYS:
            assert log.append(key, header, payload) is PutState.STORED

    def append_synced() -> None:
        for first in range(0, NUM_OBJECTS, BATCH):
            synced.append_many([(key, header, payload) for key in KEYS[first : first + BATCH]])

    def read() -> None:
        for key in KEYS:
            assert log.read(key, header_target, target)

    def close() -> None:
        log.close()
        synced.close()

    return {
        "append": append,
        "sync after": log.sync,
        "read": read,
        f"append, sync each {BATCH}": append_synced,
        "": close,
    }


def timed(step: Callable[[], object]) -> float:
    """Seconds."""
    began_s = time.perf_counter()
    step()
    return time.perf_counter() - began_s


def one_round(folder: Path, payload: memoryview, target: memoryview, took_s: dict[str, dict[str, list[float]]]) -> None:
    """Every step for both, in turn."""
    both = {"raw": raw_steps(folder / "raw", payload, target), "log": log_steps(folder, payload, target)}
    for step in both["raw"]:
        for who in both:
            seconds = timed(both[who][step])
            if step:
                took_s.setdefault(step, {}).setdefault(who, []).append(seconds)


def open_s(folder: Path, num_objects: int) -> float:
    """Seconds to open a log of so many small objects."""
    options = SsdOptions(sync=SyncPolicy.NONE)
    log = SsdLog.open(folder, 1 << 40, options)
    for first in range(0, num_objects, 1000):
        keys = [BlockKey(b"bench", number.to_bytes(32, "little")) for number in range(first, first + 1000)]
        log.append_many([(key, bytes(HEADER_BYTES), memoryview(b"")) for key in keys])
    log.close()
    began_s = time.perf_counter()
    log = SsdLog.open(folder, 1 << 40, options)
    took_s = time.perf_counter() - began_s
    assert log.stats().objects == num_objects
    log.close()
    return took_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=None, help="on the disk to measure; default: a temporary folder")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--objects", type=int, default=100_000, help="for the time to open")
    arguments = parser.parse_args()
    payload = memoryview(bytearray(os.urandom(OBJECT_BYTES)))
    target = memoryview(bytearray(OBJECT_BYTES))
    took_s: dict[str, dict[str, list[float]]] = {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            one_round(Path(name), payload, target, took_s)
    synced = took_s.pop("sync after")
    both = {who: zip(took_s["append"][who], synced[who], strict=True) for who in synced}
    took_s["append and sync"] = {who: [sum(pair) for pair in pairs] for who, pairs in both.items()}
    figures: dict[str, object] = {}
    for step, times in took_s.items():
        medians = {who: statistics.median(times[who]) for who in times}
        rates = {f"{who}_mb_s": round(NUM_OBJECTS * OBJECT_BYTES / took / 1e6) for who, took in medians.items()}
        ratios = [raw / log for raw, log in zip(times["raw"], times["log"], strict=True)]
        figures[step] = rates | {"log_over_raw": round(statistics.median(ratios), 2)}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        took = open_s(Path(name) / "open", arguments.objects)
    figures["open"] = {"objects": arguments.objects, "seconds": round(took, 2)}
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
