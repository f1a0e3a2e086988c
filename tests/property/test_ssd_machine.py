"""Random work on the SSD log, with kills, power failures and faults of the disk, against a dict.

The model knows per key what may be found after a power failure: the state at the last sync and every later one.
"""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import services.kvstore.ssd_append
import services.kvstore.ssd_records
import services.kvstore.ssd_recovery
from common.base.errors import BlockCorrupt, Unavailable
from common.cache.l3 import HEADER_BYTES, BlockKey, PutState
from services.kvstore.ssd_durable import Durable
from services.kvstore.ssd_log import SsdLog
from services.kvstore.ssd_options import SsdOptions, SyncPolicy
from services.kvstore.ssd_records import Records
from tests.support.ssd_disk import SimulatedDisk

STORE_ID = 77
SPACES = (b"one", b"two")
KEYS = [BlockKey(space, bytes([number]) * 8, number % 2) for space in SPACES for number in range(8)]
SMALL = 64 * 4096
some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=5)


def payload_of(key: BlockKey) -> bytes:
    """What belongs to a key, up to about two blocks long."""
    return repr(key).encode() * (1 + key.prefix_hash[0] * 23)


def header_of(key: BlockKey) -> bytes:
    """The header that belongs to a key."""
    return repr(key).encode().ljust(HEADER_BYTES, b".")[:HEADER_BYTES]


class Keeping:
    """What the model says of one key: whether it is there now, and whether it may be after a power failure."""

    def __init__(self) -> None:
        self.now = False
        self.after_failure = {False}
        self.dropped = False


class SsdMachine(RuleBasedStateMachine):
    """See the module."""

    with_faults = False

    @initialize(
        policy=st.sampled_from([SyncPolicy.NONE, SyncPolicy.BATCH]),
        file_blocks=st.integers(2, 12),
        capacity=st.sampled_from([SMALL, 1 << 30]),
    )
    def start(self, policy: SyncPolicy, file_blocks: int, capacity: int) -> None:
        self.options = SsdOptions(file_blocks * 4096, policy)
        self.capacity = capacity
        self.disk = SimulatedDisk()
        self.model = {key: Keeping() for key in KEYS}
        self.log = self.open()

    def open(self) -> SsdLog:
        return SsdLog(self.disk, STORE_ID, self.capacity, self.options, on_drop=self.dropped)

    def dropped(self, keys: list[BlockKey]) -> None:
        for key in keys:
            if not self.log.has(key):
                kept = self.model[key]
                kept.now, kept.dropped, kept.after_failure = False, True, {False, True}

    def synced(self) -> None:
        for kept in self.model.values():
            if not kept.dropped:
                kept.after_failure = {kept.now}

    def sync_failed(self) -> None:
        """What was not on the medium may be forgotten now."""
        for key, kept in self.model.items():
            if kept.now and not self.log.has(key):
                assert False in kept.after_failure or self.with_faults, f"{key} was on the medium and is forgotten"
                kept.now, kept.dropped, kept.after_failure = False, True, {False, True}

    @rule(keys=some_keys)
    def append(self, keys: list[BlockKey]) -> None:
        before = {key: self.model[key].now for key in keys}
        states = self.log.append_many([(key, header_of(key), memoryview(payload_of(key))) for key in keys])
        for key, state in zip(keys, states, strict=True):
            kept = self.model[key]
            if state in (PutState.STORED, PutState.PRESENT):
                assert state is PutState.STORED or before[key] or keys.count(key) > 1
                kept.now, kept.dropped = self.log.has(key), not self.log.has(key)
                kept.after_failure |= {True} if kept.now else {False, True}
            else:
                assert self.with_faults or state is PutState.NO_SPACE, f"{state} without a fault"
                kept.now = self.log.has(key)
                kept.after_failure = {False, True}
        if self.options.sync is SyncPolicy.BATCH and not {PutState.ERROR, PutState.NO_SPACE} & set(states):
            for key in keys:
                if self.model[key].now:
                    self.model[key].after_failure = {True}
        self.sync_failed()

    @rule(keys=some_keys)
    def remove(self, keys: list[BlockKey]) -> None:
        expected = sum(self.model[key].now for key in set(keys))
        self.gone(keys, lambda: self.log.remove(keys), expected)

    @rule(space=st.sampled_from(SPACES))
    def remove_namespace(self, space: bytes) -> None:
        keys = [key for key in KEYS if key.namespace == space]
        self.gone(keys, lambda: self.log.remove_namespace(space), sum(self.model[key].now for key in keys))

    def gone(self, keys: list[BlockKey], remove: object, expected: int) -> None:
        written = True
        try:
            assert remove() == expected, "removed another number"  # type: ignore[operator]
        except Unavailable:
            assert self.with_faults
            written = False
        for key in keys:
            kept = self.model[key]
            kept.now, kept.dropped = False, not written
            kept.after_failure |= {False} if written else {False, True}
        if written and self.options.sync is SyncPolicy.BATCH:
            self.synced()
        self.sync_failed()

    @rule(key=st.sampled_from(KEYS))
    def read(self, key: BlockKey) -> None:
        found = self.look(key)
        if found is None:
            assert self.with_faults and not self.model[key].now, "damaged without a fault, or not told"
        else:
            assert found == self.model[key].now, f"{key} is {'there' if found else 'missing'}"

    def look(self, key: BlockKey) -> bool | None:
        """Read and compare; `None` for a damaged one."""
        payload, header = bytearray(len(payload_of(key))), bytearray(HEADER_BYTES)
        try:
            if not self.log.read(key, memoryview(header), memoryview(payload)):
                return False
        except BlockCorrupt:
            assert not self.log.has(key), "damaged, but not forgotten"
            return None
        assert (payload, header) == (payload_of(key), header_of(key)), "a wrong byte"
        return True

    @rule(max_bytes=st.sampled_from([1, 9000, 1 << 20]))
    def compact(self, max_bytes: int) -> None:
        try:
            assert self.log.compact(max_bytes) >= 0
        except Unavailable:
            assert self.with_faults
        self.sync_failed()

    @rule(keys=some_keys)
    def touch(self, keys: list[BlockKey]) -> None:
        self.log.touch(keys)

    @rule()
    def sync(self) -> None:
        try:
            self.log.sync()
        except Unavailable:
            assert self.with_faults
            self.sync_failed()
        else:
            self.synced()

    @rule()
    def restart(self) -> None:
        try:
            self.log.close()
        except Unavailable:
            assert self.with_faults
        else:
            self.synced()
        self.reopen(power=True)

    @rule()
    def kill(self) -> None:
        self.reopen(power=True)

    @rule(seed=st.integers(0, 1 << 32), kept=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]))
    def cut_power(self, seed: int, kept: float) -> None:
        self.disk = self.disk.cut_power(random.Random(seed), kept)
        self.reopen(power=False)

    def reopen(self, power: bool) -> None:
        """Find out what is there; it must be what may be there, and from then on it is on the medium."""
        self.disk.faults.__init__()  # type: ignore[misc]
        self.log = self.open()
        for key, kept in self.model.items():
            claimed = self.log.has(key)
            found = self.look(key)
            if found is None:
                assert self.with_faults, f"{key} was claimed, but is damaged"
                found = False
            assert found == claimed or self.with_faults
            if not kept.dropped:
                allowed = {kept.now} if power else kept.after_failure
                assert found in allowed or self.with_faults, f"{key}: found {found}, allowed {allowed}"
            kept.now, kept.dropped, kept.after_failure = found, False, {found}

    @invariant()
    def within_cap(self) -> None:
        if hasattr(self, "log"):
            assert self.disk.used_bytes() <= self.capacity, f"over the cap: {self.log.stats()}"
            assert dict(self.log.keys()) == {key: len(payload_of(key)) for key in KEYS if self.model[key].now}


class FaultyMachine(SsdMachine):
    """With a disk that fails: nothing is promised but that no byte is wrong and that nothing crashes."""

    with_faults = True

    @rule(
        name=st.sampled_from(["write", "truncate", "sync", "read", "unlink"]),
        number=st.sampled_from([errno.EIO, errno.ENOSPC, errno.EROFS]),
    )
    def fault(self, name: str, number: int) -> None:
        setattr(self.disk.faults, name, errno.EIO if name == "read" else number)

    @rule(free=st.integers(0, 40))
    def fill_medium(self, free: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes() + free * 4096

    @rule(where=st.integers(0, 1 << 30), flip=st.integers(1, 255))
    def rot(self, where: int, flip: int) -> None:
        names = sorted(name for name, inode in self.disk.files.items() if inode.data)
        if names:
            data = self.disk.files[names[where % len(names)]].data
            data[where // 7 % len(data)] ^= flip


RUN = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


CONTROL = settings(RUN, max_examples=300, phases=[Phase.generate], database=None)


def test_log_against_a_dict() -> None:
    run_state_machine_as_test(SsdMachine, settings=RUN)  # type: ignore[no-untyped-call]


def test_log_on_a_failing_disk() -> None:
    run_state_machine_as_test(FaultyMachine, settings=RUN)  # type: ignore[no-untyped-call]


def no_sync(self: Durable, only_left: bool = False) -> None:
    """A log that does not sync."""


def test_control_a_log_that_does_not_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Durable, "_sync", no_sync)
    with pytest.raises(AssertionError, match=r"found (False|True)|was claimed"):
        run_state_machine_as_test(SsdMachine, settings=CONTROL)  # type: ignore[no-untyped-call]


def test_control_a_log_that_carries_no_removals_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Records, "_write_removals", lambda *_: None)
    with pytest.raises(AssertionError, match="found True"):
        run_state_machine_as_test(SsdMachine, settings=CONTROL)  # type: ignore[no-untyped-call]


def test_control_a_log_without_checksums_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (services.kvstore.ssd_recovery, services.kvstore.ssd_records, services.kvstore.ssd_append):
        monkeypatch.setattr(module, "checksum", lambda _data: 0)
    with pytest.raises(AssertionError, match="a wrong byte"):
        run_state_machine_as_test(FaultyMachine, settings=CONTROL)  # type: ignore[no-untyped-call]
