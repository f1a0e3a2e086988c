"""The SSD log in a directory: store, read, remove, restart, and what a directory may look like."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from common.base.errors import BlockCorrupt, InvalidRequest, Unavailable
from common.cache.l3 import HEADER_BYTES, BlockKey, PutState
from services.kvstore import ssd_format as fmt
from services.kvstore.ssd_disk import OsFile
from services.kvstore.ssd_format import Entry, Kind, Place
from services.kvstore.ssd_log import SsdLog
from services.kvstore.ssd_options import SsdOptions, SyncPolicy
from services.kvstore.ssd_owner import write_store_id
from services.kvstore.ssd_tail import file_name
from tests.support.ssd_objects import get, key_of, log_paths, numbers_in, payload_of, put

MIB = 1024 * 1024
SMALL_FILES = SsdOptions(file_bytes=64 * 1024, sync=SyncPolicy.NONE)


def open_log(folder: Path, options: SsdOptions = SMALL_FILES) -> SsdLog:
    return SsdLog.open(folder, 16 * MIB, options)


def filled(folder: Path, count: int) -> None:
    """A closed log with objects 0..count-1."""
    log = open_log(folder)
    assert {put(log, number) for number in range(count)} == {PutState.STORED}
    log.close()


def test_objects_come_back_and_survive_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert [put(log, number) for number in (1, 2, 1)] == [PutState.STORED, PutState.STORED, PutState.PRESENT]
    assert put(log, 3, 0) is PutState.STORED, "an empty payload is one too"
    for _ in range(2):
        assert (get(log, 1), get(log, 2), get(log, 3, 0), get(log, 4)) == (True, True, True, False)
        assert (log.size(key_of(1)), log.size(key_of(4)), log.has(key_of(2))) == (3000, None, True)
        assert dict(log.keys()) == {key_of(1): 3000, key_of(2): 3000, key_of(3): 0}
        log.close()
        log = open_log(tmp_path)
    log.close()


def test_keys_that_differ_anywhere_are_different(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    keys = [BlockKey(b"a", b"bc"), BlockKey(b"ab", b"c"), BlockKey(b"a", b"bc", 1), BlockKey(b"a", b"bc\0")]
    for number, key in enumerate(keys):
        assert log.append(key, bytes(HEADER_BYTES), memoryview(bytes([number]))) is PutState.STORED
    log.close()
    log = open_log(tmp_path)
    for number, key in enumerate(keys):
        payload = bytearray(1)
        assert log.read(key, memoryview(bytearray(HEADER_BYTES)), memoryview(payload)) and payload[0] == number
    log.close()


def test_another_length_is_not_there_and_replaces(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 1, 3000)
    assert get(log, 1, 2999) is False
    assert put(log, 1, 100) is PutState.STORED
    assert (get(log, 1, 100), get(log, 1, 3000)) == (True, False)
    log.close()
    log = open_log(tmp_path)
    assert get(log, 1, 100)
    log.close()


def test_removed_objects_stay_away_and_can_be_put_again(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    log = open_log(tmp_path)
    assert log.remove([key_of(1), key_of(1), key_of(2), key_of(99)]) == 2
    put(log, 2)
    log.close()
    log = open_log(tmp_path)
    assert (get(log, 1), get(log, 2), get(log, 3)) == (False, True, True)
    log.close()


def test_a_removed_namespace_stays_away_and_others_do_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(30):
        put(log, number, namespace=b"one")
        put(log, number, namespace=b"two")
    assert (log.remove_namespace(b"one"), log.remove_namespace(b"three")) == (30, 0)
    put(log, 7, namespace=b"one")
    log.close()
    log = open_log(tmp_path)
    assert {key.prefix_hash[0] for key in dict(log.keys()) if key.namespace == b"one"} == {7}
    assert all(get(log, number, namespace=b"two") for number in range(30))
    log.close()


def test_removals_outlive_the_file_that_says_so(tmp_path: Path) -> None:
    """Dead records in an old full file must not return when the younger file with their removal is reclaimed."""
    filled(tmp_path, 15)
    log = open_log(tmp_path)
    for number in range(100, 115):
        put(log, number)
    log.remove([key_of(number) for number in (3, *range(100, 114))])
    for number in range(200, 230):
        put(log, number)
    names = {path.name for path in log_paths(tmp_path)}
    while log.compact(MIB):
        pass
    assert names - {path.name for path in log_paths(tmp_path)}, "nothing was reclaimed"
    log.close()
    log = open_log(tmp_path)
    assert not get(log, 3) and numbers_in(log) == {*range(15), 114, *range(200, 230)} - {3}
    log.close()


def test_a_second_opening_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(Unavailable, match=r"in use by process [0-9]+ on ") as caught:
        open_log(tmp_path)
    assert caught.value.reason == "ssd_in_use"
    log.close()
    open_log(tmp_path).close()


@pytest.mark.parametrize("path", ["/proc/no", "a-file", "a-file/below"])
def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "a-file").write_bytes(b"")
    with pytest.raises(Unavailable, match="cannot be used") as caught:
        open_log(tmp_path / path)
    assert caught.value.reason == "ssd_unusable"


def test_a_cap_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        SsdLog.open(tmp_path, 1000)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / "store").write_text('{"version": 2, "store_id": "77"}')
    with pytest.raises(Unavailable, match="format 2"):
        open_log(tmp_path)


@pytest.mark.parametrize("text", [None, "", "[", "{}", '{"version": 1, "store_id": "zz"}', "[" * 100_000])
def test_a_lost_store_file_is_made_from_the_log_files(tmp_path: Path, text: str | None) -> None:
    filled(tmp_path, 20)
    before = (tmp_path / "store").read_text()
    (tmp_path / "store").unlink() if text is None else (tmp_path / "store").write_text(text)
    log = open_log(tmp_path)
    assert numbers_in(log) == set(range(20)) and (tmp_path / "store").read_text() == before
    log.close()


def test_a_copied_directory_is_the_same_store(tmp_path: Path) -> None:
    filled(tmp_path / "a", 40)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in log_paths(tmp_path / "b"):
        path.touch()
    one, two = open_log(tmp_path / "a"), open_log(tmp_path / "b")
    assert all(get(log, number) for log in (one, two) for number in range(40))
    one.close()
    two.close()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path / "a", 40)
    filled(tmp_path / "b", 40)
    stranger = log_paths(tmp_path / "b")[0]
    shutil.copy(stranger, tmp_path / "a" / "0000000077.log")
    (tmp_path / "a" / "notes.txt").write_text("mine")
    (tmp_path / "a" / "0000000088.log").symlink_to(stranger)
    (tmp_path / "a" / "0000000099.log").mkdir()
    log = open_log(tmp_path / "a")
    assert log.stats().foreign_files == 2 and numbers_in(log) == set(range(40))
    put(log, 100)
    log.close()
    assert (tmp_path / "a" / "0000000077.log").read_bytes() == stranger.read_bytes()
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    log = open_log(tmp_path / "a")
    assert get(log, 100)
    log.close()


def test_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (path,) = log_paths(tmp_path)
    whole = path.read_bytes()
    record = fmt.record_bytes(3000)
    for torn in (record - 1, record // 2, 300, 100, 1):
        path.write_bytes(whole[: len(whole) - record + torn])
        log = open_log(tmp_path)
        assert numbers_in(log) == set(range(4)) and log.stats().torn_bytes == torn
        log.close()
        assert path.stat().st_size == len(whole) - record


def test_a_damaged_middle_is_passed_over(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (path,) = log_paths(tmp_path)
    record = fmt.record_bytes(3000)
    with open(path, "r+b") as file:
        file.seek(fmt.BLOCK_BYTES + record + 100)  # the head of the second
        file.write(b"\xff")
        file.seek(fmt.BLOCK_BYTES + 3 * record + 2000)  # the payload of the fourth
        file.write(b"\xff")
    log = open_log(tmp_path)
    assert numbers_in(log) == {0, 2, 4} and log.stats().damaged_ranges == 2
    assert put(log, 1) is PutState.STORED
    log.close()
    log = open_log(tmp_path)
    assert all(get(log, number) for number in (0, 1, 2, 4))
    log.close()


def test_damage_in_a_sealed_file_is_found_by_the_read_and_forgotten(tmp_path: Path) -> None:
    filled(tmp_path, 60)
    with open(log_paths(tmp_path)[0], "r+b") as file:
        file.seek(fmt.BLOCK_BYTES + 2000)
        file.write(b"\xff")
    log = open_log(tmp_path)
    assert log.has(key_of(0))
    with pytest.raises(BlockCorrupt):
        get(log, 0)
    assert (log.has(key_of(0)), get(log, 0), log.stats().corrupt_records) == (False, False, 1)
    log.close()
    log = open_log(tmp_path)
    assert not log.has(key_of(0)) and get(log, 1), "it stays forgotten"
    assert put(log, 0) is PutState.STORED and get(log, 0)
    log.close()


@pytest.mark.parametrize("at", [-1, -100, -64 - 160 + 40])
def test_a_damaged_index_is_made_anew(tmp_path: Path, at: int) -> None:
    filled(tmp_path, 60)
    path = log_paths(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[len(whole) + at + 1 :])
    log = open_log(tmp_path)
    assert all(get(log, number) for number in range(60))
    log.close()
    assert path.read_bytes() == whole


def test_a_file_with_nothing_right_is_put_aside_and_few_are_kept(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    for number in range(100, 107):
        (tmp_path / file_name(number)).write_bytes(b"garbage" * 1000)
    (tmp_path / file_name(107)).write_bytes(b"")
    log = open_log(tmp_path)
    assert numbers_in(log) == set(range(5)) and log.stats().quarantined_files == 7
    put(log, 5)
    log.close()
    assert len(list(tmp_path.glob("*.bad"))) == 4
    log = open_log(tmp_path)
    assert numbers_in(log) == set(range(6))
    log.close()


def test_a_file_that_went_away_is_a_damaged_record(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    log = open_log(tmp_path)
    log_paths(tmp_path)[0].unlink()
    with pytest.raises(BlockCorrupt):
        get(log, 0)
    assert not log.has(key_of(0)) and get(log, 39)
    log.close()


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 1)
    log.close()
    log.close()
    assert put(log, 2) is PutState.ERROR
    with pytest.raises(Unavailable):
        get(log, 1)


def test_opening_reads_what_the_sealed_files_index_and_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed files with holes for records: only of the two newest files does opening look at the records."""
    write_store_id(tmp_path, 77)
    per_file, sequence, index_bytes = 1_000, 0, 0
    for number in range(1, 13):
        place, entries = Place(77, number), []
        for slot in range(per_file if number <= 10 else 0):
            sequence += 1
            key = BlockKey(b"n" * 32, sequence.to_bytes(32, "little"))
            entries.append(Entry(Kind.OBJECT, key, sequence, fmt.BLOCK_BYTES * (1 + slot), 3000))
        packed = fmt.pack_entries(entries)
        index_bytes += len(packed)
        with open(tmp_path / file_name(number), "wb") as file:
            file.write(fmt.pack_file_head(place))
            file.seek(fmt.BLOCK_BYTES * (1 + len(entries)))
            file.write(packed + fmt.pack_trailer(packed, place))
    num_read = 0

    def counted(file: OsFile, targets: Sequence[memoryview], offset: int) -> int:
        nonlocal num_read
        num_read += (done := read(file, targets, offset))
        return done

    read = OsFile.read
    monkeypatch.setattr(OsFile, "read", counted)
    log = SsdLog.open(tmp_path, 1 << 40)
    assert log.stats().objects == 10_000
    log.close()
    assert index_bytes <= num_read < index_bytes + 12 * 4 * fmt.BLOCK_BYTES


class Crowd:
    """Threads that work on one log at once."""

    def __init__(self, log: SsdLog) -> None:
        self.log = log
        self.stop = threading.Event()
        self.failures: list[BaseException] = []

    def read_all(self) -> None:
        for number in list(numbers_in(self.log)):
            get(self.log, number, 3000 + number * 10)

    def compact(self) -> None:
        self.log.compact(20_000)

    def write(self, first: int) -> None:
        for number in range(first, first + 300):
            assert put(self.log, number % 200, 3000 + number % 200 * 10) in (PutState.STORED, PutState.PRESENT)
            if number % 10 == 9:
                self.log.remove([key_of((number - 5) % 200)])

    def repeat(self, work: Callable[[], None]) -> None:
        while not self.stop.is_set():
            self.guard(work)

    def guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.failures.append(error)
            self.stop.set()


def test_threads_append_read_remove_and_compact_together(tmp_path: Path) -> None:
    log = SsdLog.open(tmp_path, 2 * MIB, SsdOptions(file_bytes=64 * 1024, sync=SyncPolicy.BATCH))
    crowd = Crowd(log)
    others = [
        threading.Thread(target=crowd.repeat, args=(work,)) for work in (crowd.read_all, crowd.read_all, crowd.compact)
    ]
    writers = [
        threading.Thread(target=crowd.guard, args=(functools.partial(crowd.write, first),)) for first in (0, 50, 100)
    ]
    for thread in others + writers:
        thread.start()
    for thread in writers:
        thread.join()
    crowd.stop.set()
    for thread in others:
        thread.join()
    assert not crowd.failures, crowd.failures
    there = numbers_in(log)
    log.close()
    log = SsdLog.open(tmp_path, 2 * MIB)
    assert numbers_in(log) == there and all(get(log, number, 3000 + number * 10) for number in there)
    log.close()


def test_batches_answer_per_object(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    objects = [
        (key_of(n), bytes(HEADER_BYTES), memoryview(payload_of(n, size))) for n, size in ((1, 5), (1, 5), (2, 6))
    ]
    objects.insert(1, (key_of(9), bytes(HEADER_BYTES), memoryview(bytes(5 * MIB))))
    states = log.append_many(objects)
    assert states == [PutState.STORED, PutState.NO_SPACE, PutState.PRESENT, PutState.STORED]
    assert log.append_many([]) == []
    log.close()
