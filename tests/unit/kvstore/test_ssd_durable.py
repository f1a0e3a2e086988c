"""When the SSD log syncs, who shares a sync, and what a failed one means."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from common.base.errors import BlockCorrupt, Unavailable
from common.cache.l3 import PutState
from services.kvstore.ssd_durable import Durable, OpenFile, SyncFailed
from services.kvstore.ssd_format import Place
from services.kvstore.ssd_log import SsdLog
from services.kvstore.ssd_options import SsdOptions, SyncPolicy
from tests.support.ssd_disk import SimulatedDisk, SimulatedFile
from tests.support.ssd_objects import get, key_of, numbers_in, put


def open_log(disk: SimulatedDisk, policy: SyncPolicy, now_s: list[float] | None = None) -> SsdLog:
    clock = now_s or [0.0]
    return SsdLog(disk, 77, 1 << 30, SsdOptions(1 << 20, policy, 5.0), clock=lambda: clock[0])


def after_power_failure(disk: SimulatedDisk) -> set[int]:
    """What is there when nothing survives that was not synced."""
    return numbers_in(open_log(disk.cut_power(random.Random(0), 0.0), SyncPolicy.NONE))


def test_each_policy_promises_what_it_says() -> None:
    now_s = [0.0]
    disks = {policy: SimulatedDisk() for policy in SyncPolicy}
    logs = {policy: open_log(disk, policy, now_s) for policy, disk in disks.items()}
    for log in logs.values():
        put(log, 1)
    assert {p: after_power_failure(d) for p, d in disks.items()} == {"none": set(), "interval": set(), "batch": {1}}
    now_s[0] = 5.0
    for log in logs.values():
        put(log, 2)
    found = {policy: after_power_failure(disk) for policy, disk in disks.items()}
    assert found == {"none": set(), "interval": {1, 2}, "batch": {1, 2}}
    for log in logs.values():
        log.sync()
        log.remove([key_of(1)])
    found = {policy: after_power_failure(disk) for policy, disk in disks.items()}
    assert found == {"none": {1, 2}, "interval": {1, 2}, "batch": {2}}
    for log in logs.values():
        log.close()
    assert {policy: after_power_failure(disk) for policy, disk in disks.items()} == {
        policy: {2} for policy in SyncPolicy
    }


def test_only_two_files_are_ever_at_risk() -> None:
    disk = SimulatedDisk()
    log = SsdLog(disk, 77, 1 << 30, SsdOptions(64 * 1024, SyncPolicy.NONE))
    for number in range(100):
        put(log, number, 8000)
    assert len(after_power_failure(disk)) >= 100 - 2 * 7


class SlowFile(SimulatedFile):
    """A file whose first sync waits to be let go."""

    started, go, syncs = threading.Event(), threading.Event(), 0

    def sync(self) -> None:
        SlowFile.syncs += 1
        if SlowFile.syncs == 1:
            self.started.set()
            assert self.go.wait(20)
        super().sync()


def test_threads_that_wait_share_a_sync() -> None:
    disk = SimulatedDisk()
    disk.open("1", create=True)
    opened = OpenFile(Place(77, 1), SlowFile(disk, disk.files["1"]), 4096, bytearray())
    durable = Durable(disk, 0, lambda _doomed: None)
    durable.written(opened, 1)
    threads = [threading.Thread(target=durable.sync_through, args=(1,))]
    threads[0].start()
    assert SlowFile.started.wait(20)
    for sequence in range(2, 10):
        durable.written(opened, sequence)
        threads.append(threading.Thread(target=durable.sync_through, args=(sequence,)))
        threads[-1].start()
    SlowFile.go.set()
    for thread in threads:
        thread.join()
    assert SlowFile.syncs == 2, "one that was running, and one for the eight that came meanwhile"
    durable.sync_through(9)
    assert SlowFile.syncs == 2


def test_after_a_failed_sync_nobody_is_told_that_it_is_there() -> None:
    disk = SimulatedDisk()
    doomed: list[range] = []
    durable = Durable(disk, 0, doomed.append)
    disk.open("1", create=True)
    opened = OpenFile(Place(77, 1), disk.open("1"), 4096, bytearray())
    durable.written(opened, 1)
    durable.sync_through(1)
    durable.written(opened, 3)
    disk.faults.sync = errno.EIO
    with pytest.raises(SyncFailed):
        durable.sync()
    assert opened.failed and doomed == [range(2, 4)]
    durable.sync()
    durable.sync_through(1)
    for sequence in (2, 3):
        with pytest.raises(SyncFailed):
            durable.sync_through(sequence)
    durable.written(opened, 4)
    durable.sync_through(4)


def test_what_could_not_be_synced_is_written_anew() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, SyncPolicy.BATCH)
    put(log, 1)
    disk.faults.sync = errno.EIO
    assert put(log, 2) is PutState.ERROR
    assert not log.has(key_of(2)) and log.has(key_of(1))
    assert put(log, 2) is PutState.STORED and get(log, 2)
    assert after_power_failure(disk) == {1, 2}
    disk.faults.sync = errno.EIO
    put(log, 3)
    disk.faults.sync = errno.EIO
    with pytest.raises(Unavailable) as caught:
        log.remove([key_of(1)])
    assert caught.value.reason == "ssd_failed" and not log.has(key_of(1))


def test_closing_tells_that_the_last_sync_failed_but_closes() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, SyncPolicy.NONE)
    put(log, 1)
    disk.faults.sync = errno.EIO
    with pytest.raises(Unavailable):
        log.close()


def test_an_unreadable_record_is_damaged_and_other_errors_are_not() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, SyncPolicy.NONE)
    put(log, 1)
    disk.faults.read = errno.ENOMEM
    with pytest.raises(Unavailable):
        get(log, 1)
    assert get(log, 1)
    disk.faults.read = errno.EIO
    with pytest.raises(BlockCorrupt):
        get(log, 1)
    assert not log.has(key_of(1))
