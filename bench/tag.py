"""What a keyed tag costs: `python bench/tag.py`.

Times candidates on blocks of 360 KiB that are not in cache (CPU time), how far another thread gets meanwhile (whether
they let go of the interpreter lock; a copy that does not is there to compare), and a block's whole read from an L3
folder with and without a tag. Best of several turns; the ratios are what counts. AES-GMAC is timed only where the
package `cryptography` is installed. Prints JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from common.cache.file_store import FileStore, FileStoreConfig
from common.cache.l3 import BlockKey, State
from common.cache.seal import SealConfig, SealedL3
from common.transport.checksum import checksum
from common.transport.tag import Tagger

BLOCK_BYTES = 360 * 1024
NUM_BLOCKS = 64
LONG_BYTES = 256 * 1024 * 1024
TURNS = 5
KEY = bytes(range(32))


def candidates() -> dict[str, Callable[[bytes], object]]:
    """Functions of a block, by name."""
    tagger = Tagger(KEY)
    target = bytearray(LONG_BYTES)

    def copy(block: bytes) -> None:
        target[: len(block)] = block

    found: dict[str, Callable[[bytes], object]] = {
        "copy (holds the lock)": copy,
        "xxh3-64 (no key)": checksum,
        "blake2b": lambda block: hashlib.blake2b(block, key=KEY, digest_size=16).digest(),
        "hmac-sha256": lambda block: hmac.digest(KEY, block, "sha256"),
        "blake3 (Tagger)": lambda block: tagger.tag(KEY, KEY, block),
    }
    if importlib.util.find_spec("cryptography"):
        aead = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        gcm = aead.AESGCM(KEY)
        found["aes-256-gmac"] = lambda block: gcm.encrypt(KEY[:12], b"", block)
    return found


def best_cpu_s(call: Callable[[], object]) -> float:
    """Seconds of this thread's CPU time in the cheapest of several turns; other processes hardly show in it."""
    times = []
    for _ in range(TURNS):
        began_s = time.thread_time()
        call()
        times.append(time.thread_time() - began_s)
    return min(times)


def others_progress(function: Callable[[bytes], object]) -> float:
    """Steps per second of another Python thread during one long call, relative to a sleep: near 0 is a held lock."""
    steps, stop = [0], threading.Event()

    def spin() -> None:
        while not stop.is_set():
            steps[0] += 1

    def rate(action: Callable[[], object]) -> float:
        before, began_s = steps[0], time.perf_counter()
        action()
        return (steps[0] - before) / (time.perf_counter() - began_s)

    block = bytes(LONG_BYTES)
    thread = threading.Thread(target=spin)
    thread.start()
    ratios = [rate(lambda: function(block)) / rate(lambda: time.sleep(0.1)) for _ in range(TURNS)]
    stop.set()
    thread.join()
    return sorted(ratios)[TURNS // 2]


async def read_us(folder: str, key: bytes | None) -> float:
    """CPU microseconds, all threads, per block of a whole read from a folder that is in the page cache."""
    store = FileStore(FileStoreConfig(folder, 4 * NUM_BLOCKS * BLOCK_BYTES))
    l3 = SealedL3(store, Tagger(key), SealConfig(), lambda damage: sys.exit(f"damage: {damage}"))
    await l3.start()
    keys = [BlockKey(b"bench", number.to_bytes(32, "little")) for number in range(NUM_BLOCKS)]
    await l3.put([(one, memoryview(os.urandom(BLOCK_BYTES))) for one in keys], 60)
    targets = list(enumerate(memoryview(bytearray(BLOCK_BYTES)) for _ in keys))
    times = []
    for _ in range(TURNS):
        lease = await l3.lookup(keys, 60)
        began_s = time.process_time()
        states = await lease.read(targets, 60)
        times.append(time.process_time() - began_s)
        assert set(states) == {State.HIT}, f"{set(states)}"
        await lease.close()
    await l3.close()
    return min(times) / NUM_BLOCKS * 1e6


def main() -> None:
    """Measure and print."""
    blocks = [os.urandom(BLOCK_BYTES) for _ in range(NUM_BLOCKS)]
    figures: dict[str, dict[str, float]] = {}
    for name, function in candidates().items():

        def all_blocks(function: Callable[[bytes], object] = function) -> None:
            for block in blocks:
                function(block)

        block_s = best_cpu_s(all_blocks) / NUM_BLOCKS
        figures[name] = {
            "us_per_block": round(block_s * 1e6, 1),
            "ns_per_byte": round(block_s / BLOCK_BYTES * 1e9, 3),
            "others_progress": round(others_progress(function), 2),
        }
    with tempfile.TemporaryDirectory() as folder:
        figures["read from a folder, CPU us per block"] = {
            "checksum only": round(asyncio.run(read_us(folder, None)), 1),
            "checksum and tag": round(asyncio.run(read_us(folder, KEY)), 1),
        }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
