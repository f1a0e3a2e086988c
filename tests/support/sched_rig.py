"""A scheduler over a small cache with a fake engine, one token per line of code in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.kv.block_cache import BlockCache
from common.kv.hashing import prefix_root
from common.sched.config import SchedulerConfig
from common.sched.params import SamplingParams
from common.sched.plan import StepPlan
from common.sched.request import Request, RequestUpdate
from common.sched.scheduler import Scheduler
from tests.support.fake_engine import FakeEngine

BLOCK_SIZE = 4


def make_request(
    name: str,
    prompt: Sequence[int] = (1, 2, 3),
    *,
    max_tokens: int = 4,
    block_size: int = BLOCK_SIZE,
    sampling: dict[str, Any] | None = None,
    **fields: Any,
) -> Request:
    """A request with a greedy handful of output tokens; `sampling` and `fields` override the rest."""
    params = SamplingParams(max_tokens=max_tokens, **(sampling or {}))
    return Request(name, tuple(prompt), params, prefix_root(block_size, ""), block_size, **fields)


class SchedulerRig:
    """One worker whose steps take no time. `now_s` grows by one per step."""

    def __init__(self, num_blocks: int = 32, block_size: int = BLOCK_SIZE, **config: Any) -> None:
        self.cache = BlockCache(num_blocks)
        self.scheduler = Scheduler(self.cache, SchedulerConfig(block_size=block_size, **config))
        self.engine = FakeEngine(num_blocks, block_size, lambda block: self.cache.num_references(block) == 1)
        self.now_s = 0.0
        self.updates: list[RequestUpdate] = []

    def add(self, *requests: Request) -> None:
        """Add requests in order."""
        for request in requests:
            assert self.scheduler.add(request) == "accepted"

    def plan(self) -> StepPlan | None:
        """Schedule a step without running it."""
        self.now_s += 1
        plan = self.scheduler.schedule(self.now_s)
        self.scheduler.check()
        return plan

    def finish(self, plan: StepPlan, failed: Sequence[str] = ()) -> list[RequestUpdate]:
        """Run a plan and fold its result in."""
        updates = self.scheduler.update(self.engine.step(plan, failed), self.now_s)
        self.scheduler.check()
        self.updates += updates
        return updates

    def step(self, failed: Sequence[str] = ()) -> dict[str, int]:
        """Run one step; returns how many tokens of whom it computed."""
        plan = self.plan()
        if plan is None:
            return {}
        self.finish(plan, failed)
        return {s.request_id: len(s.token_ids) for s in plan.sequences}

    def drain(self, limit: int = 1000) -> list[dict[str, int]]:
        """Step until there is nothing to do."""
        steps = []
        while step := self.step():
            steps.append(step)
            assert len(steps) < limit, "does not come to an end"
        return steps

    def land(self, request: Request, num_blocks: int) -> None:
        """Bytes of the leading blocks of a landing request arrive."""
        start = request.num_landed
        stop = min(num_blocks * request.block_size, request.num_tokens)
        self.engine.write(request.block_table, start, request.tokens(start, stop))
        self.scheduler.landed(request.request_id, num_blocks)
        self.scheduler.check()
