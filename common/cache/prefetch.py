"""Bringing the prefix of a queued request from L3 into the lowest tier of the worker, while it waits for its turn.

::

    begin ──> lookup a batch of names ──> read its hits into held blocks ──> verified head is indexed ──> next batch
       └─ the request is passed over by the scheduler until the KV is here, or waiting costs more than it may

Invariants: what is not verified is never indexed; a request waits for a bounded time, and for a store that has told
nothing yet at most a small share of what computing would take; blocks on the way are bounded, and a block that one
request brings is not read for another; a request that is admitted, or gone, stops its prefetch after the running batch.
A fault of the store is a miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.base.clock import monotonic
from common.base.logging import get_logger
from common.cache.config import PrefetchConfig, PrefetchPolicy
from common.cache.l3 import L3, BlockKey, Lease, State
from common.cache.tiers import Tiers
from common.sched.request import Request, Status

NAMES_PER_LOOKUP = 128
BATCHES_AT_ONCE = 4
"""A store lends so many batches to one worker at a time; leases are dear (open files, memory of a node)."""
MAX_TAKEN_RATIO = 0.5
"""Most blocks that all running reads hold, as a share of those that the tier could give without them."""
ORIGIN = "l3"


@dataclass(slots=True)
class PrefetchCounters:
    """What prefetches found and brought, in blocks; `timeouts` and `skipped` in requests.

    Attributes:
        answers: blocks looked up or read, by what the store answered.
        fetched: blocks indexed.
        timeouts: requests that stopped waiting before all was here.
        skipped: requests that went without because too much was on the way.
    """

    answers: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    fetched: int = 0
    timeouts: int = 0
    skipped: int = 0

    def count(self, states: Sequence[State]) -> None:
        """Count answers."""
        for state in states:
            self.answers[state] += 1


@dataclass(slots=True)
class _Job:
    """A prefetch.

    Attributes:
        request, hashes, first: for whom, and which blocks: those of the path from `first` on.
        ahead: an earlier prefetch that brings the first of them already, while it runs.
        num_found: how many blocks the store has said it has.
        found: set with the first answer that is above 0; shared with those that wait for this one.
        ended: set when it is over.
    """

    request: Request
    hashes: Sequence[bytes]
    first: int
    ahead: _Job | None
    found: asyncio.Event
    num_found: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def num_promised(self) -> int:
        """Blocks that the store has, as far as this prefetch or the one ahead has heard."""
        return max(self.num_found, self.ahead.num_promised if self.ahead is not None else 0)

    @property
    def wanted(self) -> bool:
        """Whether the request still waits for its turn."""
        return self.request.status in (Status.WAITING, Status.PREEMPTED)


class Prefetcher:
    """Runs prefetches on the worker's loop."""

    def __init__(
        self,
        tiers: Tiers,
        l3: L3,
        namespace: bytes,
        config: PrefetchConfig,
        *,
        prefill_tokens_per_s: Callable[[], float],
        on_missing: Callable[[bytes], None],
        on_present: Callable[[bytes], None],
    ) -> None:
        """Start idle.

        Args:
            tiers: where the blocks go.
            l3: where they come from.
            namespace: of this worker's KV.
            config: may be replaced at any time.
            prefill_tokens_per_s: measured speed of computing, 0 when unknown.
            on_missing: told each name that the store says it does not have, or whose block is not as it was written.
            on_present: told each name whose block was read from the store and verified.
        """
        self.config = config
        self.counters = PrefetchCounters()
        self._tiers = tiers
        self._l3 = l3
        self._namespace = namespace
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._on_missing = on_missing
        self._on_present = on_present
        self._num_coming = 0
        self._num_taken = 0
        self._coming: dict[bytes, _Job] = {}
        self._batches = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._jobs: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def num_jobs(self) -> int:
        """Prefetches that have not ended."""
        return len(self._jobs)

    def begin(self, request: Request) -> None:
        """Look for what is missing of a queued request's prefix; it may be passed over until that is here."""
        hashes = request.reusable_hashes()
        first = self._tiers.match(hashes)
        num_missing = len(hashes) - first
        if self._closed or num_missing * request.block_size < self.config.min_tokens:
            return
        if self._num_coming + num_missing > self.config.max_blocks:
            self.counters.skipped += 1
            return
        self._num_coming += num_missing
        ahead = self._coming.get(hashes[first])
        job = _Job(request, hashes, first, ahead, asyncio.Event() if ahead is None else ahead.found)
        for name in hashes[first:]:
            self._coming.setdefault(name, job)
        request.awaits_kv = self.config.policy is not PrefetchPolicy.BEST_EFFORT
        task = asyncio.create_task(self._run(job), name=f"prefetch-{request.request_id}")
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def drained(self) -> None:
        """Wait until no prefetch is running."""
        while self._jobs:
            await asyncio.wait(self._jobs)

    async def close(self) -> None:
        """Begin no more, and wait for those that run: each ends with its running batch, within the store's deadline."""
        self._closed = True
        await self.drained()

    async def _run(self, job: _Job) -> None:
        fetching = asyncio.create_task(self._fetch(job))
        try:
            if job.request.awaits_kv and not await self._wait(job, fetching):
                self.counters.timeouts += 1
            self._let_go(job)
            await fetching
        except Exception as error:  # noqa: BLE001 - whatever a store does, the request is computed instead
            get_logger().error("prefetch failed", request_id=job.request.request_id, exc_info=error)
        finally:
            self._num_coming -= len(job.hashes) - job.first
            for name in job.hashes[job.first :]:
                if self._coming.get(name) is job:
                    del self._coming[name]
            job.ended.set()
            self._let_go(job)

    def _let_go(self, job: _Job) -> None:
        """Let the scheduler admit the request."""
        if job.request.awaits_kv:
            job.request.awaits_kv = False
            self._tiers.hooks.on_change()

    async def _wait(self, job: _Job, fetching: asyncio.Task[None]) -> bool:
        """Wait as long as the policy allows; whether the fetch has ended."""
        config, size = self.config, job.request.block_size
        if config.policy is PrefetchPolicy.WAIT_COMPLETE:
            await asyncio.wait((fetching,))
            return True
        num_tokens = (len(job.hashes) - job.first) * size
        longest_s = config.timeout_base_s + config.timeout_per_1k_tokens_s * num_tokens / 1000
        speed = self._prefill_tokens_per_s()
        patience_s = min(longest_s, config.patience_ratio * num_tokens / speed) if speed else longest_s
        finding = asyncio.create_task(job.found.wait())
        try:
            await asyncio.wait((fetching, finding), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finding.cancel()
        found_s = monotonic()
        while job.found.is_set() and not fetching.done():  # what the next batches find prolongs it
            longest_s = config.timeout_base_s + config.timeout_per_1k_tokens_s * job.num_promised * size / 1000
            left_s = found_s + longest_s - monotonic()
            if left_s <= 0:
                return False
            await asyncio.wait((fetching,), timeout=left_s)
        return fetching.done()

    async def _fetch(self, job: _Job) -> None:
        end = job.first
        if job.ahead is not None:  # what it brings need not be read twice
            await job.ahead.ended.wait()
            job.ahead = None  # else the latest of many would keep all before it
            end = max(end, self._tiers.match(job.hashes))
        while end < len(job.hashes) and job.wanted and not self._closed:
            stop = min(end + NAMES_PER_LOOKUP, len(job.hashes))
            async with self._batches:
                landed = await self._fetch_batch(job, end, stop)
            end += landed
            self.counters.fetched += landed
            if end < stop:
                return

    async def _fetch_batch(self, job: _Job, first: int, stop: int) -> int:
        """Bring blocks `first .. stop - 1` of a path; returns how many of them, from the first on, are here now."""
        keys = [BlockKey(self._namespace, name) for name in job.hashes[first:stop]]
        lease = await self._l3.lookup(keys, self.config.deadline_s)
        try:
            num_found = _head(lease.states)
            self.counters.count(lease.states[num_found:])
            for key, state in zip(keys, lease.states, strict=True):
                if state is State.MISS:
                    self._on_missing(key.prefix_hash)
            if not num_found or not job.wanted:
                return 0
            job.num_found += num_found
            job.found.set()
            return await self._read(job, job.hashes[: first + num_found], first, lease)
        finally:
            await lease.close()

    async def _read(self, job: _Job, path: Sequence[bytes], first: int, lease: Lease) -> int:
        """Read the blocks of a path from `first` on into the lowest tier and index the verified head."""
        tier = self._tiers.lowest
        head = await self._hold_head(path[:first])
        if head is None:
            return 0
        blocks = self._take(len(path) - first)
        try:
            wanted = [(index, tier.view(block)) for index, block in enumerate(blocks)]
            states = await self._l3_read(lease, wanted)
            num_good = _head(states)
            for name in path[first : first + num_good]:
                self._on_present(name)
            for name, state in zip(path[first:], states, strict=False):
                if state is State.CORRUPT:
                    self._on_missing(name)
            tier.cache.insert(path[: first + num_good], head + blocks[:num_good], priority=job.request.priority)
            job.request.fetched_from = (ORIGIN, job.first, first + num_good)
            return num_good
        finally:
            self._num_taken -= len(blocks)
            tier.cache.release(head + blocks)
            self._tiers.hooks.on_change()

    def _take(self, count: int) -> list[int]:
        """Up to `count` blocks of the lowest tier to read into, as many as leave enough for who runs."""
        cache = self._tiers.lowest.cache
        room = int((cache.num_available + self._num_taken) * MAX_TAKEN_RATIO) - self._num_taken
        blocks = cache.allocate(max(0, min(count, room))) or []
        self._num_taken += len(blocks)
        return blocks

    async def _l3_read(self, lease: Lease, wanted: list[tuple[int, memoryview]]) -> list[State]:
        states = await lease.read(wanted, self.config.deadline_s) if wanted else []
        self.counters.count(states)
        return states

    async def _hold_head(self, path: Sequence[bytes]) -> list[int] | None:
        """Hold the blocks before those that are fetched in the same tier; None when they are not there."""
        tier = self._tiers.lowest
        if tier.cache.match(path) < len(path) and self._tiers.l2 is not None:
            await self._tiers.save(path)
        head = tier.cache.acquire(path, touch=False)
        if len(head) == len(path):
            return head
        tier.cache.release(head)
        return None


def _head(states: Sequence[State]) -> int:
    """Number of leading hits."""
    return next((index for index, state in enumerate(states) if state is not State.HIT), len(states))
