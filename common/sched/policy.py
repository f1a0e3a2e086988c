"""Who waits, and who is admitted next.

=========  ===========================================================================================
fcfs       by arrival
lpm        by the longest prefix match, each second of waiting counting as so many matched tokens
priority   by priority, then arrival; the scheduler may preempt for the first
=========  ===========================================================================================

Admission is in that order and stops at the first request that does not fit: nobody small slips past somebody large for
ever. A preempted request keeps its arrival time, so it comes back ahead of those that arrived after it. Under lpm a
request's key does not change while it waits (arrival counts, not age), so nobody starves: whoever arrives late enough
can no longer overtake. Knows nothing about blocks in use, budgets or running requests.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from common.sched.config import Policy, SchedulerConfig
from common.sched.request import Request

LPM_WINDOW = 64
"""Under lpm, as many of the earliest requests compete; bounds the matching work of a step."""

Match = Callable[[Sequence[bytes]], int]


def _arrival(request: Request) -> tuple[float, int]:
    return (request.arrival_s, request.order)


def by_rank(request: Request) -> tuple[int, float, int]:
    """Sort key: the rank of a request."""
    return request.rank


class WaitingQueue:
    """Waiting requests in order of arrival, and how many tokens they have."""

    def __init__(self) -> None:
        """Start empty."""
        self._requests: list[Request] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Iterate in order of arrival."""
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Let a request wait."""
        insort(self._requests, request, key=_arrival)
        self.num_tokens += request.num_tokens

    def remove(self, request: Request) -> None:
        """Take a request out; it has as many tokens as when it came."""
        self._requests.remove(request)
        self.num_tokens -= request.num_tokens

    def next(self, count: int, config: SchedulerConfig, match: Match) -> list[Request]:
        """Return up to `count` requests in the order of the policy in force; changes nothing.

        Those whose KV is on the way are passed over; they keep their place.

        Args:
            count: how many can be admitted at most.
            config: policy and ageing.
            match: number of leading blocks of a path that are here.
        """
        ready = (request for request in self._requests if not request.awaits_kv)
        if config.policy is Policy.PRIORITY:
            return heapq.nsmallest(count, ready, key=by_rank)
        if config.policy is Policy.FCFS:
            return list(islice(ready, count))

        def key(request: Request) -> tuple[float, int]:
            num_matched_tokens = match(request.reusable_hashes()) * config.block_size
            return (request.arrival_s * config.lpm_ageing_tokens_per_s - num_matched_tokens, request.order)

        return sorted(islice(ready, LPM_WINDOW), key=key)[:count]
