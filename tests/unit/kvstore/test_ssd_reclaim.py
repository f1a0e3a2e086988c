"""Space of the SSD log: the cap holds, compaction loses nothing, the old and unused go first, a full medium heals."""

from __future__ import annotations

import errno

from structlog.testing import capture_logs

from common.cache.l3 import BlockKey, PutState
from services.kvstore.ssd_log import SsdLog
from services.kvstore.ssd_options import SsdOptions, SyncPolicy
from tests.support.ssd_disk import SimulatedDisk
from tests.support.ssd_objects import get, key_of, numbers_in, put

CAPACITY_BYTES = 1024 * 1024
FILE_BYTES = 64 * 1024
PER_FILE = 7


class Rig:
    """A log on a simulated disk, and what it said it dropped."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.disk = SimulatedDisk()
        self.capacity_bytes = capacity_bytes
        self.dropped: list[BlockKey] = []
        self.log = self.open()

    def open(self) -> SsdLog:
        options = SsdOptions(FILE_BYTES, SyncPolicy.NONE)
        return SsdLog(self.disk, 77, self.capacity_bytes, options, on_drop=self.dropped.extend)

    def fill(self, numbers: range) -> None:
        for number in numbers:
            assert put(self.log, number, 7900) is PutState.STORED
            assert self.disk.used_bytes() <= self.capacity_bytes
            assert self.log.stats().disk_bytes >= self.disk.used_bytes()


def test_the_cap_holds_and_the_oldest_go_first() -> None:
    rig = Rig()
    rig.fill(range(400))
    there = numbers_in(rig.log)
    assert there == set(range(400 - len(there), 400)), "not the oldest went"
    assert len(there) * 7900 > CAPACITY_BYTES * 0.75, "too much of the cap is not used"
    assert set(rig.dropped) == {key_of(number) for number in range(400)} - {key_of(number) for number in there}
    assert rig.log.stats().dropped_objects == len(rig.dropped)


def test_what_is_used_gets_a_second_chance() -> None:
    rig = Rig()
    rig.fill(range(10))
    for number in range(10, 400):
        rig.fill(range(number, number + 1))
        assert get(rig.log, 1, 7900)
        rig.log.touch([key_of(2), key_of(9999)])
    assert {1, 2} < numbers_in(rig.log) and 3 not in numbers_in(rig.log)
    rig.fill(range(400, 800))
    assert not {1, 2} & numbers_in(rig.log), "a chance is given once for a use"


def test_when_all_is_used_there_still_is_room() -> None:
    rig = Rig()
    for number in range(400):
        rig.fill(range(number, number + 1))
        rig.log.touch([key_of(one) for one in numbers_in(rig.log)])
    assert rig.log.stats().copied_bytes < 2 * 400 * 7900, "space is paid for too dearly"


def test_compaction_loses_nothing_and_gives_space_back() -> None:
    rig = Rig()
    rig.fill(range(70))
    rig.log.remove([key_of(number) for number in range(70) if number % 5])
    before = rig.disk.used_bytes()
    steps = 0
    while rig.log.compact(7900):
        steps += 1
        assert rig.disk.used_bytes() <= before + FILE_BYTES, "compaction needs more than a file"
    assert steps > 5, "work comes in bounded steps"
    assert rig.disk.used_bytes() < before // 2
    assert numbers_in(rig.log) == set(range(0, 70, 5)) and not rig.dropped
    assert all(get(rig.log, number, 7900) for number in range(0, 70, 5))
    rig.log.close()
    rig.log = rig.open()
    assert numbers_in(rig.log) == set(range(0, 70, 5)), "what was removed returned"


def test_garbage_goes_before_objects() -> None:
    rig = Rig()
    rig.fill(range(100))
    rig.log.remove([key_of(number) for number in range(50, 100)])
    rig.fill(range(100, 140))
    assert numbers_in(rig.log) == {*range(50), *range(100, 140)} and not rig.dropped


def test_compact_makes_room_ahead_of_need() -> None:
    rig = Rig()
    rig.fill(range(400))
    assert rig.log.compact(1 << 20) > 0
    while rig.log.compact(1 << 20):
        pass
    dropped = len(rig.dropped)
    rig.fill(range(400, 400 + PER_FILE))
    assert len(rig.dropped) == dropped


def test_removals_alone_stay_within_the_cap() -> None:
    rig = Rig(64 * 4096)
    for turn in range(300):
        put(rig.log, turn % 4, 100)
        rig.log.remove([key_of(number) for number in range(4)])
        rig.log.remove_namespace(b"space")
        assert rig.disk.used_bytes() <= rig.capacity_bytes, turn


def test_what_can_never_fit_has_no_space() -> None:
    rig = Rig()
    rig.fill(range(10))
    assert put(rig.log, 100, CAPACITY_BYTES // 2) is PutState.NO_SPACE
    assert put(rig.log, 100, 2 * FILE_BYTES) is PutState.STORED, "a large one gets a file of its own"
    assert get(rig.log, 100, 2 * FILE_BYTES) and numbers_in(rig.log) == {*range(10), 100}


def test_a_full_medium_gives_up_old_files_and_heals() -> None:
    rig = Rig()
    rig.fill(range(60))
    rig.disk.capacity_bytes = rig.disk.used_bytes() + 10_000
    with capture_logs() as logs:
        for number in range(100, 160):
            assert put(rig.log, number, 7900) in (PutState.STORED, PutState.NO_SPACE)
    assert 0 < len(logs) < 20 and "the disk is full" in logs[0]["event"], "once for each file, not for each object"
    assert logs[0]["path"] == rig.disk.path
    assert {158, 159} < numbers_in(rig.log) and 0 not in numbers_in(rig.log)
    assert all(get(rig.log, number, 7900) for number in numbers_in(rig.log))
    rig.disk.capacity_bytes = 1 << 40
    rig.fill(range(200, 300))
    assert len(numbers_in(rig.log)) > 100, "the cap stayed low"


def test_a_full_medium_without_anything_to_give_is_no_space() -> None:
    rig = Rig()
    rig.disk.capacity_bytes = 5000
    assert put(rig.log, 1, 7900) is PutState.NO_SPACE
    rig.disk.capacity_bytes = 1 << 40
    assert put(rig.log, 1, 7900) is PutState.STORED and get(rig.log, 1, 7900)


def test_a_failed_write_leaves_nothing_and_the_next_one_works() -> None:
    rig = Rig()
    rig.fill(range(3))
    for fault in ("write", "truncate"):
        rig.disk.faults.write = errno.EIO
        rig.disk.faults.truncate = errno.EIO if fault == "truncate" else 0
        assert put(rig.log, 10, 7900) is PutState.ERROR
        assert not rig.log.has(key_of(10))
    assert put(rig.log, 10, 7900) is PutState.STORED
    assert all(get(rig.log, number, 7900) for number in (0, 1, 2, 10))
    rig.log.close()
    rig.log = rig.open()
    assert numbers_in(rig.log) == {0, 1, 2, 10}
