"""The `file` backend of L3: a folder that several workers share, on a local disk or a network mount.

The simplest store that is still right: one file a block (file_folder.py), a size cap that the workers keep without
talking (file_census.py), open files as leases (file_lease.py). Nothing is synced: after a power failure blocks may be
missing or damaged, which the seal notices. Every call leaves at its deadline, however long the folder hangs
(threads.py); readers and writers have threads of their own, so that a walk of the folder or a slow disk for writes does
not hold up reads.

Knows nothing of headers, checksums, tags, or which process wrote what.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass

from common.base.errors import Leg, Unavailable
from common.base.logging import get_logger
from common.cache import file_folder
from common.cache.file_census import Census
from common.cache.file_lease import FileLease, OpenFiles, Reading, Slabs
from common.cache.l3 import HEADER_BYTES, BackendLease, BlockKey, L3Stats, PutState, SealedBlock, State
from common.cache.threads import IoThreads, Job

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class FileStoreConfig:
    """How one worker uses the folder.

    Attributes:
        path: the folder; made if missing, with access for this user only.
        capacity_bytes: the cap, headers included; the same for all workers.
        num_readers: threads that open and read.
        num_writers: threads that write, evict and remove.
        max_jobs: unfinished pieces of work per kind; more are refused, so that a frozen mount cannot pile them up.
        max_leased: blocks open at a time; at most half of what the process may open counts.
        lease_s: after so many seconds a forgotten lease ends.
        touch_after_s: a block's time of use is kept to about so many seconds.
        admin_deadline_s: for opening the folder and for removing a namespace.
    """

    path: str
    capacity_bytes: int
    num_readers: int = 4
    num_writers: int = 2
    max_jobs: int = 256
    max_leased: int = 1024
    lease_s: float = 60.0
    touch_after_s: float = 60.0
    admin_deadline_s: float = 30.0


class FileStore:
    """See `Backend`. Start it before use; the first count of the folder goes on behind."""

    name = "file"

    def __init__(self, config: FileStoreConfig) -> None:
        self._config = config
        self._root = config.path
        self._readers = IoThreads("l3-read", config.num_readers, config.max_jobs)
        self._writers = IoThreads("l3-write", config.num_writers, config.max_jobs)
        self._counter = IoThreads("l3-count", 1, 1)
        self._census = Census(config.path, config.capacity_bytes)
        may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._open_files = OpenFiles(config.path, min(config.max_leased, may_open // 2))
        self._reading = Reading(self._readers, Slabs(), config.touch_after_s)
        self._leases: set[FileLease] = set()

    @property
    def num_leased(self) -> int:
        """Blocks that are open now."""
        return self._open_files.num_open

    async def start(self) -> None:
        """See `Backend.start`."""
        problems: list[OSError] = []

        def open_root(_job: Job, _number: int) -> None:
            try:
                os.makedirs(self._root, mode=0o700, exist_ok=True)
                os.listdir(self._root)
            except OSError as error:
                problems.append(error)

        answered = await self._readers.for_each([0], open_root, self._config.admin_deadline_s)
        if problems or not answered:
            cause = problems[0].strerror if problems else f"no answer for {self._config.admin_deadline_s:g} s"
            raise Unavailable(f"the L3 folder {self._root} cannot be used: {cause}", leg=Leg.STORE)
        self._counter.submit(self._count)

    async def counted(self) -> None:
        """Wait until the first count is over, so that `stats` knows what was there before."""
        await self._counter.for_each([0], lambda _job, _number: None, self._config.admin_deadline_s)

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> BackendLease:
        """See `Backend.lookup`."""
        lease = FileLease(len(keys), self._reading, self._leases.discard)
        self._leases.add(lease)

        def find(job: Job, index: int) -> None:
            self._find(job, keys[index], index, lease)

        try:
            await self._readers.for_each(range(len(keys)), find, deadline_s)
        except BaseException:
            lease.end()
            raise
        lease.expire_after(self._config.lease_s)
        return lease

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        """See `Backend.put`."""
        answers = [PutState.ERROR] * len(blocks)

        def write(job: Job, number: int) -> None:
            state = self._write(job, blocks[number])
            job.commit(lambda: answers.__setitem__(number, state))

        await self._writers.for_each(range(len(blocks)), write, deadline_s)
        return answers

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """See `Backend.discard`."""
        for key in keys:
            self._writers.submit(functools.partial(self._discard, key))

    async def remove_namespace(self, namespace: bytes) -> int:
        """See `Backend.remove_namespace`."""
        removed: list[int] = []

        def remove(_job: Job, _number: int) -> None:
            try:
                removed.append(file_folder.remove_namespace(self._root, namespace))
                self._census.count()
            except FileNotFoundError:
                removed.append(0)
            except OSError as error:
                get_logger().warning("a namespace cannot be removed", folder=self._root, error=str(error))

        await self._writers.for_each([0], remove, self._config.admin_deadline_s)
        if not removed:
            raise Unavailable(f"the L3 folder {self._root} did not remove the namespace", leg=Leg.STORE)
        return removed[0]

    async def stats(self) -> L3Stats:
        """See `Backend.stats`."""
        return self._census.stats()

    async def close(self) -> None:
        """See `Backend.close`; threads that hang in the folder are left behind."""
        for lease in list(self._leases):
            lease.end()
        for threads in (self._readers, self._writers, self._counter):
            threads.close()

    def _count(self) -> None:
        """Look at what is there already; a folder that cannot be walked is found out again by whoever writes."""
        try:
            file_folder.sweep_trash(self._root)
            self._census.count()
        except OSError as error:
            get_logger().warning("the L3 folder cannot be counted", folder=self._root, error=str(error))

    def _find(self, job: Job, key: BlockKey, index: int, lease: FileLease) -> None:
        """Open one block in a thread, and hand it to the lease if that still waits."""
        file = None
        try:
            file = self._open_files.open(key)
            state = State.HIT
        except FileNotFoundError:
            state = State.MISS
        except OSError as error:
            get_logger().warning("a block of the L3 folder cannot be opened", folder=self._root, error=str(error))
            state = State.ERROR
        if not job.commit(lambda: lease.put_answer(index, state, file)) and file is not None:
            file.close()

    def _write(self, job: Job, block: SealedBlock) -> PutState:
        """Write one block in a thread."""
        name = file_folder.block_name(block.key)
        num_bytes = HEADER_BYTES + block.payload.nbytes
        try:
            with file_folder.open_shard(self._root, block.key, create=True) as shard:
                before = file_folder.block_bytes(shard, name)
                if before == num_bytes:
                    file_folder.touch(name, self._config.touch_after_s, shard)
                    return PutState.PRESENT
                if not self._census.claim(num_bytes):
                    return PutState.NO_SPACE
                stored = False
                try:
                    stored = self._write_claimed(job, block, shard, name)
                finally:
                    self._census.settle(num_bytes, stored)
            if stored and before is not None:
                self._census.release(before)
        except OSError as error:
            get_logger().warning("a block cannot be written to the L3 folder", folder=self._root, error=str(error))
            return PutState.NO_SPACE if error.errno in _FULL else PutState.ERROR
        return PutState.STORED if stored else PutState.ERROR

    def _write_claimed(self, job: Job, block: SealedBlock, shard: int, name: str) -> bool:
        """Write and rename; False when nobody waits any more: the payload may have changed under the writing."""
        temp = ""
        try:
            temp = file_folder.write_temp(shard, [block.header, block.payload])
            if job.revoked:
                file_folder.remove(shard, temp)
                return False
            os.rename(temp, name, src_dir_fd=shard, dst_dir_fd=shard)
        except OSError:
            if temp:
                file_folder.remove(shard, temp)
            raise
        return True

    def _discard(self, key: BlockKey) -> None:
        """Remove one block in a thread."""
        name = file_folder.block_name(key)
        try:
            with file_folder.open_shard(self._root, key) as shard:
                num_bytes = file_folder.block_bytes(shard, name)
                if num_bytes is not None and file_folder.remove(shard, name):
                    self._census.release(num_bytes)
        except FileNotFoundError:
            return
        except OSError as error:
            get_logger().warning("a corrupt block cannot be removed", folder=self._root, error=str(error))
