"""A process that works on a shared L3 folder: `python -m tests.support.l3_file_worker FOLDER SEED ROUNDS`.

Puts and reads random blocks of a common set, checks every hit byte by byte, and prints what it saw as JSON. ROUNDS 0 is
for ever, for a test that kills it. A line "ready" comes first.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections import Counter

from common.cache.file_store import FileStore, FileStoreConfig
from common.cache.l3 import State
from tests.support.l3_contract import CAPACITY_BYTES, SealedStore, block_of, fetch, key_of

NUM_KEYS = 60


async def open_store(folder: str) -> SealedStore:
    """A sealed store over a folder, as every worker process opens it."""
    store = SealedStore(FileStore(FileStoreConfig(folder, CAPACITY_BYTES)))
    await store.l3.start()
    return store


async def work(folder: str, seed: int, num_rounds: int) -> None:
    """Put and read, then report."""
    store = await open_store(folder)
    rng, seen = random.Random(seed), Counter[str]()
    print("ready", flush=True)
    for _ in range(num_rounds) if num_rounds else itertools.count():
        chosen = [key_of(number) for number in rng.sample(range(NUM_KEYS), 6)]
        if rng.random() < 0.5:
            seen.update(await store.put([block_of(key) for key in chosen]))
        else:
            seen.update(await fetch(store, chosen))
    await store.close()
    print(json.dumps({**seen, "damage": len(store.damage), State.HIT: seen[State.HIT]}), flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
