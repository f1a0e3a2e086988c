"""Which requests a worker has, where each one stands, and the moves between the places.

Every known request is in exactly one place: waiting, landing, running, or ended with blocks that are still in use (by
the plan in flight, or by whoever asked to keep them). The moves keep status, place and blocks in step; *when* to move
is the scheduler's decision.

Invariants: status tells the place; running requests are sorted by rank; those that wait hold no blocks; ids are unique
among known requests. Knows nothing about policies, budgets or plans.
"""

from __future__ import annotations

from bisect import insort

from common.sched.policy import WaitingQueue, by_rank
from common.sched.request import FinishReason, Request, Status
from common.sched.tables import BlockTables


class Roster:
    """All requests of one worker by place. The three places are for reading; moves go through the methods."""

    def __init__(self, tables: BlockTables) -> None:
        """Start without requests; blocks go back through `tables`."""
        self._tables = tables
        self._requests: dict[str, Request] = {}
        self._num_added = 0
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        self.landing: dict[str, Request] = {}
        self.num_preemptions = 0

    @property
    def num_seated(self) -> int:
        """Requests that hold blocks for being computed: running and landing ones."""
        return len(self.running) + len(self.landing)

    @property
    def num_unlanded_blocks(self) -> int:
        """Blocks that are reserved for bytes which have not landed yet."""
        return sum(len(r.block_table) - r.num_landed // r.block_size for r in self.landing.values())

    def get(self, request_id: str) -> Request | None:
        """Return a request that has not ended or whose blocks are still in use, else None."""
        return self._requests.get(request_id)

    def wait(self, request: Request) -> None:
        """Take a new request in; it waits."""
        self._register(request)
        self.waiting.add(request)

    def land(self, request: Request) -> None:
        """Take a new request in; it has its blocks, their bytes arrive."""
        self._register(request)
        self._land(request)

    def load(self, request: Request) -> None:
        """Let a waiting request land: it has its blocks, the bytes of some come from L2."""
        self._take_out(request)
        self._land(request)

    def run(self, request: Request) -> None:
        """Let a waiting or landing request run; it has its blocks."""
        self._take_out(request)
        request.status = Status.RUNNING
        insort(self.running, request, key=by_rank)

    def preempt(self, request: Request) -> None:
        """Take the blocks of a running request; it waits again, and finds again what the tiers still have."""
        self._take_out(request)
        self._tables.park(request)
        self._tables.close(request)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(request)

    def end(self, request: Request, reason: FinishReason) -> None:
        """End a request; its blocks go back now, or after the step that uses them, or stay kept if it ended well."""
        self._take_out(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        request.keep_blocks &= reason in (FinishReason.STOP, FinishReason.LENGTH)
        self.forget_if_unused(request)

    def end_if_due(self, request: Request, max_known_tokens: int) -> FinishReason | None:
        """End a request whose output so far is all it may have; returns why, None when it goes on."""
        due = request.due_finish(max_known_tokens)
        if due is not None:
            self.end(request, due)
        return due

    def end_if_impossible(self, request: Request, max_known_tokens: int) -> bool:
        """End a request that can get no token more, well if it has some output, else with an error."""
        if self.end_if_due(request, max_known_tokens) is not None:
            return True
        if request.num_tokens < max_known_tokens:
            return False
        request.error = f"{request.num_tokens} tokens leave no room for output: a request ends at {max_known_tokens}"
        self.end(request, FinishReason.ERROR)
        return True

    def forget_if_unused(self, request: Request) -> None:
        """Give back the blocks of an ended request and forget it, once no step and nobody else uses them."""
        assert request.status is Status.FINISHED, f"request {request.request_id} is {request.status}"
        if not request.in_flight and not request.keep_blocks:
            self._tables.close(request)
            del self._requests[request.request_id]

    def check(self) -> None:
        """Assert the invariants."""
        assert self.running == sorted(self.running, key=by_rank), "running requests are out of order"
        num_tokens = sum(r.num_tokens for r in self.waiting)
        assert num_tokens == self.waiting.num_tokens, f"{num_tokens} tokens wait, noted {self.waiting.num_tokens}"
        for request in self.waiting:
            assert not request.block_table, f"waiting request {request.request_id} has blocks"
        for request in (*self.running, *self.landing.values()):
            computed, known = request.num_computed, request.num_tokens
            assert 0 <= computed < known, f"request {request.request_id}: {computed} of {known} tokens computed"
            needed = request.num_blocks_for(computed)
            assert len(request.block_table) >= needed, f"{len(request.block_table)} blocks of {needed}"
        ended = [r for r in self._requests.values() if r.status is Status.FINISHED]
        assert all(r.in_flight or r.keep_blocks for r in ended), "an ended request whose blocks nobody uses is known"
        num_placed = len(self.waiting) + self.num_seated + len(ended)
        assert num_placed == len(self._requests), f"{num_placed} requests have a place, {len(self._requests)} are known"

    def _register(self, request: Request) -> None:
        assert request.request_id not in self._requests, f"request {request.request_id} is known"
        assert request.status is Status.WAITING, f"request {request.request_id} is {request.status}"
        self._num_added += 1
        request.order = self._num_added
        self._requests[request.request_id] = request

    def _land(self, request: Request) -> None:
        request.status = Status.LANDING
        request.num_landed = request.num_computed
        self.landing[request.request_id] = request

    def _take_out(self, request: Request) -> None:
        """Remove a request from its place."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
        elif request.status is Status.LANDING:
            del self.landing[request.request_id]
        else:
            assert request.status is not Status.FINISHED, f"request {request.request_id} has ended"
            self.waiting.remove(request)
