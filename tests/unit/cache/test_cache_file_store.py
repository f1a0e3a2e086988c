"""The folder as a store: the contract, and everything a folder can do to it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.base.errors import Unavailable
from common.cache import file_folder
from common.cache.file_census import Census
from common.cache.file_store import FileStore, FileStoreConfig
from common.cache.l3 import HEADER_BYTES, PutState, State
from tests.support.l3_contract import (
    BLOCK_BYTES,
    CAPACITY_BYTES,
    SPACE,
    BareStore,
    L3Contract,
    Place,
    block_of,
    eventually,
    fetch,
    key_of,
    payload_of,
    targets,
)

OBJECT_BYTES = HEADER_BYTES + BLOCK_BYTES


class TestFileStore(L3Contract):
    """A folder keeps the contract."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        async def open_store() -> FileStore:
            store = FileStore(FileStoreConfig(str(tmp_path / "l3"), CAPACITY_BYTES))
            await store.start()
            await store.counted()  # what is put meanwhile may count twice
            return store

        return Place(open_store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "l3"


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[BareStore]:
    backend = FileStore(FileStoreConfig(str(folder), CAPACITY_BYTES, touch_after_s=0))
    await backend.start()
    await backend.counted()
    yield BareStore(backend)
    await backend.close()


def path_of(folder: Path, number: int = 1) -> Path:
    """Where the block of `key_of(number)` lies."""
    key = key_of(number)
    return folder.joinpath(*file_folder.shard_path(key), file_folder.block_name(key))


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def test_lays_out_one_file_a_block(store: BareStore, folder: Path) -> None:
    await store.put([block_of(key_of(1))])
    assert files_of(folder) == [path_of(folder).name]
    assert path_of(folder).read_bytes()[HEADER_BYTES:] == payload_of(key_of(1))
    assert path_of(folder).stat().st_mode & 0o077 == 0
    assert path_of(folder).relative_to(folder).parts[0] == SPACE.hex()


@pytest.mark.parametrize("content", [b"", b"x", b"y" * (OBJECT_BYTES - 1), b"z" * (OBJECT_BYTES + 1)])
async def test_files_of_another_length_are_corrupt_and_replaced(store: BareStore, folder: Path, content: bytes) -> None:
    await store.put([block_of(key_of(1))])
    path_of(folder).write_bytes(content)
    assert await fetch(store, [key_of(1)]) == [State.CORRUPT]
    assert await store.put([block_of(key_of(1))]) == [PutState.STORED]
    assert await fetch(store, [key_of(1)]) == [State.HIT]


async def test_a_file_cut_under_a_lease_is_corrupt(store: BareStore, folder: Path) -> None:
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    os.truncate(path_of(folder), 100)
    assert await store.read(lease, [(0, targets(1)[0])]) == [State.CORRUPT]
    await lease.close()


def _directory(path: Path, _secret: Path) -> None:
    path.mkdir(parents=True)


def _link(path: Path, secret: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(secret)


def _linked_shard(path: Path, secret: Path) -> None:
    path.parent.parent.mkdir(parents=True)
    (secret.parent / path.name).write_bytes(secret.read_bytes())
    path.parent.symlink_to(secret.parent)


def _fifo(path: Path, _secret: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path)


def _file_for_folder(path: Path, _secret: Path) -> None:
    path.parent.parent.mkdir(parents=True)
    path.parent.write_bytes(b"not a folder")


@pytest.mark.parametrize("obstacle", [_directory, _link, _linked_shard, _fifo, _file_for_folder])
async def test_what_is_no_plain_file_is_an_error_and_is_not_followed(
    store: BareStore, folder: Path, tmp_path: Path, obstacle: object
) -> None:
    secret = tmp_path / "elsewhere" / "secret"
    secret.parent.mkdir()
    secret.write_bytes(b"s" * OBJECT_BYTES)
    assert callable(obstacle)
    obstacle(path_of(folder), secret)
    before = sorted(secret.parent.iterdir())
    assert await fetch(store, [key_of(1), key_of(2)]) == [State.ERROR, State.MISS]
    assert set(await store.put([block_of(key_of(1))])) <= {PutState.ERROR, PutState.STORED}
    await store.remove_namespace(SPACE)
    assert sorted(secret.parent.iterdir()) == before and secret.read_bytes() == b"s" * OBJECT_BYTES


async def test_goes_on_when_the_folder_is_deleted(store: BareStore, folder: Path) -> None:
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    shutil.rmtree(folder)
    assert await fetch(store, [key_of(1)]) == [State.MISS]
    assert await store.remove_namespace(SPACE) == 0
    assert await store.read(lease, [(0, targets(1)[0])]) == [State.HIT]
    await lease.close()
    assert await store.put([block_of(key_of(1))]) == [PutState.STORED]
    assert await fetch(store, [key_of(1)]) == [State.HIT]


async def test_a_full_disk_is_no_space_and_leaves_nothing(
    store: BareStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(file_folder.os, "write", write)
        assert await store.put([block_of(key_of(1))]) == [PutState.NO_SPACE]
    assert files_of(folder) == []
    assert (await store.stats()).bytes == 0
    assert await store.put([block_of(key_of(1))]) == [PutState.STORED]


async def test_denied_permission_is_an_error(store: BareStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put([block_of(key_of(1))])
    real = os.open

    def deny(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise PermissionError(errno.EACCES, "denied")
        return real(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(file_folder.os, "open", deny)
        assert await fetch(store, [key_of(1)]) == [State.ERROR]
        assert await store.put([block_of(key_of(2))]) == [PutState.ERROR]
    assert await fetch(store, [key_of(1)]) == [State.HIT]


async def test_a_folder_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = FileStore(FileStoreConfig(str(tmp_path / "file"), CAPACITY_BYTES))
    with pytest.raises(Unavailable, match=str(tmp_path / "file")):
        await store.start()
    await store.close()


async def test_counts_what_was_there_and_sweeps_what_crashes_left(folder: Path) -> None:
    shard = path_of(folder).parent
    shard.mkdir(parents=True)
    path_of(folder).write_bytes(b"o" * OBJECT_BYTES)
    (shard / ".tmp-old").write_bytes(b"half")
    (shard / ".tmp-new").write_bytes(b"half")
    (shard / "README").write_bytes(b"a stranger")
    os.utime(shard / ".tmp-old", (time.time() - 3600,) * 2)
    trash = folder / ".trash-1" / "ab"
    trash.mkdir(parents=True)
    (trash / path_of(folder).name).write_bytes(b"gone")
    store = FileStore(FileStoreConfig(str(folder), CAPACITY_BYTES))
    await store.start()
    await store.counted()
    stats = await store.stats()
    await store.close()
    assert (stats.objects, stats.bytes) == (1, OBJECT_BYTES + 4)
    assert files_of(folder) == sorted([".tmp-new", "README", path_of(folder).name])
    assert not (folder / ".trash-1").exists()


async def test_evicts_what_was_not_used_for_longest(store: BareStore, folder: Path) -> None:
    keys = [key_of(number) for number in range(40)]
    for key in keys:  # of those written at the same time some may count twice, and others go for them
        await store.put([block_of(key)])
    for number in range(40):
        os.utime(path_of(folder, number), (1000 + number,) * 2)
    assert await fetch(store, keys[:5]) == [State.HIT] * 5
    assert await store.put([block_of(keys[39]), block_of(key_of(40))]) == [PutState.PRESENT, PutState.STORED]
    states = await fetch(store, [*keys, key_of(40)])
    gone = [number for number, state in enumerate(states) if state is State.MISS]
    assert gone == [5, 6, 7, 8], "a tenth of the cap goes, the longest unused first"


async def test_never_evicts_strangers(store: BareStore, folder: Path) -> None:
    (folder / "README").write_bytes(b"a stranger")
    (folder / SPACE.hex()).mkdir()
    (folder / SPACE.hex() / "notes").write_bytes(b"x" * CAPACITY_BYTES)
    for first in range(0, 120, 10):
        await store.put([block_of(key_of(number)) for number in range(first, first + 10)])
    assert {"README", "notes"} <= set(files_of(folder))


async def test_workers_that_do_not_talk_keep_the_cap_together(folder: Path) -> None:
    stores = [FileStore(FileStoreConfig(str(folder), CAPACITY_BYTES)) for _ in range(3)]
    for backend in stores:
        await backend.start()
        await backend.counted()
    for number in range(200):
        await BareStore(stores[number % 3]).put([block_of(key_of(number))])
        assert bytes_in(folder) <= CAPACITY_BYTES + 3 * max(CAPACITY_BYTES // 64, OBJECT_BYTES)
    for backend in stores:
        await backend.close()


async def test_forgotten_leases_end(folder: Path) -> None:
    backend = FileStore(FileStoreConfig(str(folder), CAPACITY_BYTES, lease_s=0.01))
    await backend.start()
    store = BareStore(backend)
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    await eventually(lambda: backend.num_leased == 0)
    assert await store.read(lease, [(0, targets(1)[0])]) == [State.EXPIRED]
    await backend.close()


async def test_a_read_that_starts_after_the_close_touches_no_descriptor(
    store: BareStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may come to its block when the lease's files are closed and their numbers used again."""
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    read_from: list[int] = []
    monkeypatch.setattr(file_folder, "read_exactly", lambda fd, _target: read_from.append(fd))
    file = lease._files[0]
    file.close()
    assert await store.read(lease, [(0, targets(1)[0])]) == [State.ERROR]
    assert read_from == []
    await lease.close()


async def test_opens_no_more_files_than_allowed(folder: Path) -> None:
    backend = FileStore(FileStoreConfig(str(folder), CAPACITY_BYTES, max_leased=3))
    await backend.start()
    store = BareStore(backend)
    keys = [key_of(number) for number in range(5)]
    await store.put([block_of(key) for key in keys])
    lease = await store.lookup(keys)
    assert sorted(lease.states) == [State.ERROR] * 2 + [State.HIT] * 3
    assert backend.num_leased == 3
    await lease.close()
    await eventually(lambda: backend.num_leased == 0)
    assert await fetch(store, keys[:3]) == [State.HIT] * 3
    await backend.close()


class Frozen:
    """A mount that hangs: calls of `file_folder.<name>` wait until `thaw`, and `entered` says that one does."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.entered = threading.Event()
        self.thaw = threading.Event()
        real = getattr(file_folder, name)

        def wait(*args: object, **kwargs: object) -> object:
            self.entered.set()
            assert self.thaw.wait(60)
            return real(*args, **kwargs)

        patch.setattr(file_folder, name, wait)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Frozen]]:
    made: list[Frozen] = []
    yield made
    for one in made:
        one.thaw.set()


async def quiet(backend: FileStore) -> None:
    """Wait until no thread of the store is in a job."""
    pools = (backend._readers, backend._writers)
    await eventually(lambda: all(threads._num_unfinished == 0 for threads in pools))


async def test_a_read_leaves_a_frozen_mount_and_is_not_written_late(
    store: BareStore, monkeypatch: pytest.MonkeyPatch, frozen: list[Frozen]
) -> None:
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    (target,) = targets(1)
    before = bytes(target)
    frozen.append(Frozen(monkeypatch, "read_exactly"))
    assert await store.read(lease, [(0, target)], 0.05) == [State.ERROR]
    assert frozen[0].entered.is_set() and store.backend.num_leased == 1
    await lease.close()
    frozen[0].thaw.set()
    await quiet(store.backend)
    assert bytes(target) == before
    await eventually(lambda: store.backend.num_leased == 0)


async def test_a_lookup_leaves_a_frozen_mount_and_leaks_no_file(
    store: BareStore, monkeypatch: pytest.MonkeyPatch, frozen: list[Frozen]
) -> None:
    await store.put([block_of(key_of(number)) for number in range(8)])
    frozen.append(Frozen(monkeypatch, "open_block"))
    lease = await store.lookup([key_of(number) for number in range(8)], 0.05)
    assert list(lease.states) == [State.ERROR] * 8
    frozen[0].thaw.set()
    await quiet(store.backend)
    assert store.backend.num_leased == 0
    await lease.close()


async def test_a_cancelled_lookup_leaks_no_file(
    store: BareStore, monkeypatch: pytest.MonkeyPatch, frozen: list[Frozen]
) -> None:
    await store.put([block_of(key_of(1))])
    frozen.append(Frozen(monkeypatch, "open_block"))
    looking = asyncio.create_task(store.lookup([key_of(1)]))
    await asyncio.to_thread(frozen[0].entered.wait)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    frozen[0].thaw.set()
    await quiet(store.backend)
    assert store.backend.num_leased == 0


async def test_a_put_that_was_left_makes_no_object_of_what_the_block_became(
    store: BareStore, folder: Path, monkeypatch: pytest.MonkeyPatch, frozen: list[Frozen]
) -> None:
    frozen.append(Frozen(monkeypatch, "write_temp"))
    key, payload = block_of(key_of(1))
    assert await store.put([(key, payload)], 0.05) == [PutState.ERROR]
    frozen[0].thaw.set()
    await quiet(store.backend)
    assert files_of(folder) == []
    assert (await store.stats()).bytes == 0


async def test_a_frozen_mount_piles_up_a_bounded_number_of_jobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, frozen: list[Frozen]
) -> None:
    backend = FileStore(FileStoreConfig(str(folder), CAPACITY_BYTES, num_readers=1, max_jobs=3))
    await backend.start()
    frozen.append(Frozen(monkeypatch, "open_block"))
    for _ in range(6):
        lease = await backend.lookup([key_of(1)], 0.01)
        assert lease.states == [State.ERROR]
    assert backend._readers._num_unfinished == 3
    frozen[0].thaw.set()
    await quiet(backend)
    assert (await backend.lookup([key_of(1)], 20)).states == [State.MISS]
    await backend.close()


def test_the_first_count_does_not_hold_up_writers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written while the count walks is in the sum, at most twice."""
    census = Census(str(folder), 64 * 1000)
    real = file_folder.walk

    def walk_and_claim(root: str) -> Iterator[file_folder.Found]:
        assert census.claim(1000)
        yield from real(root)

    monkeypatch.setattr(file_folder, "walk", walk_and_claim)
    census.count()
    assert (census.stats().objects, census.stats().bytes) == (1, 1000)


def test_what_is_claimed_counts_before_a_walk_can_meet_it(folder: Path) -> None:
    census = Census(str(folder), 3000)
    assert [census.claim(1000) for _ in range(4)] == [True, True, True, False]
    census.settle(1000, stored=False)
    assert census.claim(1000)
    assert (census.stats().objects, census.stats().bytes) == (3, 3000)


def test_a_block_that_has_just_gone_is_not_marked_as_used(tmp_path: Path) -> None:
    shard = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file_folder.touch("gone", 0.0, shard)
    finally:
        os.close(shard)
