"""Who gets a seat and blocks, and who loses them when they run short.

Rules, in the order a step applies them: running requests grow first, and when there is no block for one, the last in
rank pays with its own; after that nobody new comes in (unless nobody runs any more). Then waiting requests are admitted
in the order of the policy, up to the first that does not fit; under `priority` it may take the place of lower ones.
Passed over is who shares blocks with one that computes them now: it finds them soon, instead of computing them too.

Invariants: running and landing requests take at most max_num_seqs seats (after a change of configuration: as soon as
some have left); the first in rank never loses its blocks to another; while somebody waits who could not be seated,
nobody of the same or lower priority slips past by reserving. Knows nothing about steps, plans or results.
"""

from __future__ import annotations

from common.kv.block_cache import BlockCache
from common.sched.batch import demand
from common.sched.config import Policy, SchedulerConfig
from common.sched.request import Request, Status
from common.sched.roster import Roster
from common.sched.tables import BlockTables
from common.sched.tiering import Load


class Seating:
    """Moves requests to and from running, for want or plenty of seats, blocks and budget."""

    def __init__(self, cache: BlockCache, tables: BlockTables, roster: Roster) -> None:
        """Work on the requests of `roster`, whose blocks come from `cache` through `tables`."""
        self._cache = cache
        self._tables = tables
        self._roster = roster
        self._stuck: Request | None = None
        self.loads: list[Load] = []

    def reserve(self, request: Request, config: SchedulerConfig) -> bool:
        """Give a new request, whose KV will be fetched, a seat and blocks; False, and nothing changed: not now."""
        stuck = self._stuck
        if stuck is not None and _waits(stuck) and stuck.priority >= request.priority:
            return False
        unlanded = self._roster.num_unlanded_blocks
        max_new = config.max_landing_blocks - unlanded if unlanded else None
        if not self._has_seat(config) or not self._open(request, config, max_new):
            return False
        self._roster.land(request)
        return True

    def grow_running(self) -> bool:
        """Make every table cover its known tokens; False when that has cost somebody its blocks."""
        running, before = self._roster.running, self._roster.num_preemptions
        position = 0
        while position < len(running):
            if self._tables.grow(running[position]):
                position += 1
            else:
                self._stuck = running[-1]
                self._roster.preempt(running[-1])
        return self._roster.num_preemptions == before

    def admit(self, config: SchedulerConfig) -> None:
        """Move waiting requests to running, in the order of the policy, while seats, budget and blocks last.

        Those of whose path L2 has more go to landing instead: `loads` says what is to be copied.
        """
        if not self._has_seat(config) and config.policy is not Policy.PRIORITY:
            self._stuck = next((r for r in self._roster.waiting if not r.awaits_kv), None)
            return
        for request in self._roster.waiting.next(config.max_num_seqs, config, self._cache.match):
            if self._finds_more_soon(request, config):
                continue
            if not self._has_budget(request, config):
                return
            if not self._make_room(request, config):
                self._stuck = request
                return
            load = self._tables.find_load(request, config)
            if load is None:
                self._roster.run(request)
            else:
                self._roster.load(request)
                self.loads.append(load)

    def _has_seat(self, config: SchedulerConfig) -> bool:
        return self._roster.num_seated < config.max_num_seqs

    def _open(self, request: Request, config: SchedulerConfig, max_new: int | None = None) -> bool:
        """Get blocks for a request and note the prefix found."""
        opened = self._tables.open(request, config, idle=self._roster.num_seated == 0, max_new=max_new)
        if opened:
            request.note_cached("l1", 0, request.num_computed // request.block_size)
        return opened

    def _finds_more_soon(self, request: Request, config: SchedulerConfig) -> bool:
        """Tell whether one that runs and ranks higher computes blocks of its prefix that are not here yet."""
        num_blocks = request.num_blocks_for(config.shared_prefill_min_tokens)
        path = request.reusable_hashes()
        for other in self._roster.running:
            last = other.num_computed // other.block_size + num_blocks - 1
            coming = other.chain.hashes
            if other.rank < request.rank and last < min(len(path), len(coming)) and path[last] == coming[last]:
                return self._cache.match(path) <= last
        return False

    def _has_budget(self, request: Request, config: SchedulerConfig) -> bool:
        """Tell whether a step has tokens left for a request after those that go before it."""
        before = (r for r in self._roster.running if r.num_uncomputed == 1 or r.rank < request.rank)
        return sum(demand(r, config) for r in before) < config.max_batch_tokens

    def _make_room(self, request: Request, config: SchedulerConfig) -> bool:
        """Get a seat and blocks for a waiting request, under `priority` at the cost of lower ones; False: not now."""
        running = self._roster.running
        while not self._has_seat(config) or not self._open(request, config):
            may_preempt = config.policy is Policy.PRIORITY and running
            if not may_preempt or running[-1].priority >= request.priority:
                return False
            self._roster.preempt(running[-1])
        return True


def _waits(request: Request) -> bool:
    return request.status in (Status.WAITING, Status.PREEMPTED)
