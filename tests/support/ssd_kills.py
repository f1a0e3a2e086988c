"""Kills writers of an SSD log at random points and counts what they lost: `python -m tests.support.ssd_kills FOLDER`.

A thousand lives in well under a minute: one light process forks a child per life. The child inherits the ledger of what
was promised, opens the log, checks all of it, then works and tells every operation through a pipe, before and after;
it dies by SIGKILL, either from outside after a random time or, by its own hand, within a random call of the disk (in
the middle of a write: after a random part of the bytes). The next life, which is the next check, goes on in the folder.

Prints a line of JSON. `--sabotage` breaks the log or the folder on purpose, to show that the harness would notice.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from common.base.errors import BlockCorrupt
from common.cache.l3 import HEADER_BYTES, BlockKey, PutState
from services.kvstore import ssd_append, ssd_records, ssd_recovery
from services.kvstore.ssd_disk import OsFile
from services.kvstore.ssd_log import SsdLog
from services.kvstore.ssd_options import SsdOptions, SyncPolicy

NUM_KEYS = 48
CAPACITY_BYTES = 16 * 1024 * 1024
FILE_BYTES = 256 * 1024
KEYS = [BlockKey(b"space%d" % (number % 3), number.to_bytes(32, "little")) for number in range(NUM_KEYS)]
MEAN_WORK_S = 0.005
HANG_S = 60
SABOTAGE = ("none", "forget-writes", "rot", "forget-removals")


PAYLOADS = [random.Random(number).randbytes(64) * (1 + number * number * 2 // 3) for number in range(NUM_KEYS)]
"""What belongs to each key: up to about 100 KiB."""


@dataclass
class Ledger:
    """What was promised: keys that must be there, keys that must not, and those of the operation that was cut off."""

    there: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)

    def begin(self, numbers: list[int]) -> None:
        self.unsure.update(numbers)

    def done(self, numbers: list[int], there: bool) -> None:
        self.unsure.difference_update(numbers)
        if there:
            self.there.update(numbers)
        else:
            self.there.difference_update(numbers)


def die() -> None:
    """At once, as by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


class Suicide:
    """Dies within one of the next calls of the disk: before, in the middle of, or after it."""

    def __init__(self, chance: random.Random, within: int) -> None:
        self._left = chance.randrange(within)
        self._chance = chance
        self._write, self._truncate, self._sync = OsFile.write, OsFile.truncate, OsFile.sync

    def arm(self) -> None:
        def write(file: OsFile, sources: Sequence[bytes | memoryview], offset: int) -> None:
            if self._is_now():
                whole = b"".join(sources)
                self._write(file, [whole[: self._chance.randrange(len(whole) + 1)]], offset)
                die()
            self._write(file, sources, offset)

        def sync(file: OsFile) -> None:
            if self._is_now():
                die()
            self._sync(file)

        def truncate(file: OsFile, size: int) -> None:
            self._truncate(file, size)
            if self._is_now():
                die()

        OsFile.write, OsFile.sync, OsFile.truncate = write, sync, truncate  # type: ignore[method-assign]

    def _is_now(self) -> bool:
        self._left -= 1
        return self._left < 0


class Life:
    """One child: check what was promised, then work until death."""

    def __init__(self, folder: Path, ledger: Ledger, pipe: int, seed: int) -> None:
        self._folder = folder
        self._ledger = ledger
        self._pipe = pipe
        self._chance = random.Random(seed)

    def live(self, num_operations: int) -> None:
        suicide = Suicide(self._chance, within=30)
        dies_when = self._chance.choices(["opening", "working", "killed"], [1, 5, 4])[0]
        if dies_when == "opening":
            suicide.arm()
        policy = self._chance.choice([SyncPolicy.NONE, SyncPolicy.NONE, SyncPolicy.NONE, SyncPolicy.BATCH])
        self.log = SsdLog.open(self._folder, CAPACITY_BYTES, SsdOptions(FILE_BYTES, policy))
        self.check()
        if dies_when == "working":
            suicide.arm()
        for _ in range(num_operations):
            self.work()

    def say(self, *words: object) -> None:
        os.write(self._pipe, json.dumps(words).encode() + b"\n")

    def check(self) -> None:
        found = dict(self.log.keys())
        wrong = len(found.keys() - set(KEYS))
        lost = returned = 0
        for number, key in enumerate(KEYS):
            there = self.has_right(number, key)
            if there is None:
                wrong += 1
            elif number not in self._ledger.unsure:
                lost += number in self._ledger.there and not there
                returned += number not in self._ledger.there and there
        stats = self.log.stats()
        self.say("checked", wrong, lost, returned, stats.torn_bytes, stats.damaged_ranges, stats.quarantined_files)
        there_now = [number for number, key in enumerate(KEYS) if self.log.has(key)]
        self.say("there", there_now)

    def has_right(self, number: int, key: BlockKey) -> bool | None:
        """Whether it is there; `None` when it is wrong."""
        expected = PAYLOADS[number]
        header, payload = bytearray(HEADER_BYTES), bytearray(len(expected))
        try:
            if not self.log.read(key, memoryview(header), memoryview(payload)):
                return False if self.log.size(key) is None else None
        except BlockCorrupt:
            return False
        return True if (payload, header) == (expected, bytes([number]) * HEADER_BYTES) else None

    def work(self) -> None:
        kind = self._chance.choice(["append"] * 6 + ["remove", "remove", "space", "compact"])
        numbers = self._chance.sample(range(NUM_KEYS), self._chance.randint(1, 4))
        if kind == "append":
            self.say("begin", numbers)
            objects = [(KEYS[n], bytes([n]) * HEADER_BYTES, memoryview(PAYLOADS[n])) for n in numbers]
            states = self.log.append_many(objects)
            good = [n for n, s in zip(numbers, states, strict=True) if s in (PutState.STORED, PutState.PRESENT)]
            self.say("done", good, True)
        elif kind == "remove":
            self.say("begin", numbers)
            self.log.remove([KEYS[number] for number in numbers])
            self.say("done", numbers, False)
        elif kind == "space" and self._chance.random() < 0.3:
            space = [number for number, key in enumerate(KEYS) if key.namespace == KEYS[numbers[0]].namespace]
            self.say("begin", space)
            self.log.remove_namespace(KEYS[numbers[0]].namespace)
            self.say("done", space, False)
        else:
            self.log.compact(1 << 20)


def spoil(name: str, folder: Path, chance: random.Random) -> None:
    """Negative controls: what a broken log or a broken disk would do, in the child before it opens the log."""
    if name == "forget-writes":
        keep = OsFile.write
        OsFile.write = lambda *args: keep(*args) if chance.random() < 0.9 else None  # type: ignore[method-assign]
    elif name == "forget-removals":
        ssd_records.Records._write_removals = lambda *_: None  # type: ignore[method-assign]
    elif name == "rot":
        for module in (ssd_append, ssd_records, ssd_recovery):
            module.checksum = lambda _data: 0  # type: ignore[attr-defined]
        for path in folder.glob("*.log"):
            with open(path, "r+b") as file:
                file.seek(4096 + 256 + chance.randrange(10))
                file.write(b"rot")


@dataclass
class Tally:
    """What came out; all but the first four are no faults."""

    wrong: int = 0
    lost: int = 0
    returned: int = 0
    crashes: int = 0
    lives: int = 0
    checks: int = 0
    torn: int = 0
    damaged_ranges: int = 0
    quarantined_files: int = 0


class Reaper:
    """Starts lives, listens, and kills."""

    def __init__(self, folder: Path, seed: int, sabotage: str) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._sabotage = sabotage
        self._ledger = Ledger()
        self.tally = Tally()

    def one_life(self, last: bool) -> None:
        reading, writing = os.pipe()
        seed = self._chance.randrange(1 << 32)
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._be_child(writing, seed, 0 if last else 200)
        os.close(writing)
        self._listen(reading, child)
        os.close(reading)
        _, status = os.waitpid(child, 0)
        self.tally.lives += 1
        self.tally.crashes += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0

    def _be_child(self, pipe: int, seed: int, num_operations: int) -> None:
        code = 1
        try:
            spoil(self._sabotage, self._folder, random.Random(seed))
            life = Life(self._folder, self._ledger, pipe, seed)
            if num_operations:
                life.live(num_operations)
            else:
                life.log = SsdLog.open(self._folder, CAPACITY_BYTES, SsdOptions(FILE_BYTES))
                life.check()
            code = 0
        except Exception as error:  # noqa: BLE001 - a crash of any kind counts
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)

    def _listen(self, pipe: int, child: int) -> None:
        """Until the child is gone; kill it at a random moment after it has checked what it found."""
        data = b""
        deadline_s = time.monotonic() + HANG_S
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([pipe], [], [], None if left_s == math.inf else left_s)[0]:
                os.kill(child, signal.SIGKILL)
                deadline_s = math.inf
                continue
            more = os.read(pipe, 65536)
            if not more:
                return
            *lines, data = (data + more).split(b"\n")
            for word, *facts in map(json.loads, lines):
                self._hear(word, *facts)
                if word == "there":
                    deadline_s = time.monotonic() + self._chance.expovariate(1 / MEAN_WORK_S)

    def _hear(self, word: str, *facts: object) -> None:
        tally, ledger = self.tally, self._ledger
        if word == "checked":
            wrong, lost, returned, torn, damaged, quarantined = facts
            tally.checks += 1
            tally.wrong += wrong  # type: ignore[operator]
            tally.lost += lost  # type: ignore[operator]
            tally.returned += returned  # type: ignore[operator]
            tally.torn += torn != 0
            tally.damaged_ranges += damaged  # type: ignore[operator]
            tally.quarantined_files += quarantined  # type: ignore[operator]
        elif word == "there":
            ledger.there, ledger.unsure = set(facts[0]), set()  # type: ignore[call-overload]
        elif word == "begin":
            ledger.begin(facts[0])  # type: ignore[arg-type]
        else:
            ledger.done(*facts)  # type: ignore[arg-type]


def main() -> None:
    """Run the lives and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", choices=SABOTAGE, default="none")
    arguments = parser.parse_args()
    gc.freeze()  # Children that live for milliseconds need no collector, and shall share the parent's pages.
    gc.disable()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    reaper = Reaper(arguments.folder, arguments.seed, arguments.sabotage)
    began_s = time.monotonic()
    for _ in range(arguments.lives):
        reaper.one_life(last=False)
    with contextlib.suppress(KeyboardInterrupt):
        reaper.one_life(last=True)
    print(json.dumps({**vars(reaper.tally), "seconds": round(time.monotonic() - began_s, 1)}))


if __name__ == "__main__":
    main()
