"""One worker without a model, everything that can happen to it, and what must hold meanwhile.

The world runs a scheduler over a small cache with a fake engine, and checks against what each request must produce on
its own: tokens, prompt logprobs, cached tokens, one end per request; blocks conserved and every reference accounted
for; in the end every request has ended and nothing is held. Who drives it (a state machine, a random walk) chooses
requests by number: `which` modulo the requests that an event can happen to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.base.errors import InvalidRequest
from common.kv.block_cache import BlockCache
from common.kv.hashing import prefix_root
from common.sched.config import SchedulerConfig
from common.sched.params import SamplingParams
from common.sched.plan import StepPlan, TokenLogprobs
from common.sched.request import FinishReason, Request, RequestUpdate, Status
from common.sched.scheduler import Admission, Scheduler
from tests.support.fake_engine import FakeEngine, next_token, reference_output, reference_prompt_logprobs

MAX_STEPS_TO_DRAIN = 3000


class World:
    """A worker whose pool holds about `room` tokens."""

    def __init__(
        self, block_size: int, room: int, config: dict[str, Any], engine_class: type[FakeEngine] = FakeEngine
    ) -> None:
        self.block_size = block_size
        self.cache = BlockCache(-(-room // block_size), max_events=50)
        rules = SchedulerConfig(block_size=block_size, max_waiting_tokens=300, **config)
        self.scheduler = Scheduler(self.cache, rules)
        self.engine = engine_class(
            self.cache.num_blocks, block_size, lambda block: self.cache.num_references(block) == 1
        )
        self.plan: StepPlan | None = None
        self.now_s = 0.0
        self.all: dict[str, Request] = {}
        self.given: dict[str, int] = {}
        self.ended: dict[str, FinishReason] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.elsewhere: set[str] = set()
        self.lent: list[list[int]] = []
        self.shortest_limit = self.scheduler.max_known_tokens

    def arrive(self, prompt: list[int], params: SamplingParams, priority: int, resumed: int, keep: bool) -> None:
        """A request comes to be computed here; it may have `resumed` output tokens already."""
        request = self._make(prompt, params, priority, resumed, keep)
        try:
            outcome = self.scheduler.add(request)
        except InvalidRequest:
            assert len(prompt) >= self.scheduler.max_known_tokens
            return
        if outcome is Admission.ACCEPTED:
            self._take_in(request)
        if request.status is Status.WAITING and outcome is Admission.ACCEPTED:
            with pytest.raises(InvalidRequest):
                self.scheduler.add(request)
        self._collect()

    def reserve(self, prompt: list[int], params: SamplingParams, priority: int, resumed: int, keep: bool) -> None:
        """A request comes whose KV will be fetched."""
        request = self._make(prompt, replace(params, prompt_logprobs=None), priority, resumed, keep)
        try:
            reservation = self.scheduler.reserve(request)
        except InvalidRequest:
            assert len(prompt) >= self.scheduler.max_known_tokens
            return
        if reservation is not None:
            self._take_in(request)
            assert list(reservation.block_ids) == request.block_table
            assert len(request.block_table) == request.num_blocks_for(request.num_tokens)
            assert reservation.num_cached_blocks * self.block_size == request.num_computed

    def land(self, which: int, count: int) -> None:
        """Bytes of the next blocks of a landing request arrive from a peer."""
        request = self._pick(which, Status.LANDING)
        if request is None:
            return
        self.elsewhere.add(request.request_id)
        num_here = request.num_landed // self.block_size
        num_blocks = min(num_here + count, len(request.block_table))
        start, stop = num_here * self.block_size, min(num_blocks * self.block_size, request.num_tokens)
        self.engine.write(request.block_table, start, request.tokens(start, stop))
        self.scheduler.landed(request.request_id, num_blocks)

    def resume(self, which: int, with_token: bool) -> None:
        """A landing request has all it will get."""
        request = self._pick(which, Status.LANDING)
        if request is None:
            return
        over = request.due_finish(self.scheduler.max_known_tokens) is not None
        token = next_token(request.tokens(0, request.num_tokens)) if with_token and not over else None
        reason = self.scheduler.resume(request.request_id, token, self.now_s)
        if reason is not None:
            self._note_end(request, reason)

    def schedule(self) -> None:
        """Plan a step, unless one is in flight."""
        self.now_s += 1
        if self.plan is not None:
            return
        config = self.scheduler.config
        self.plan = self.scheduler.schedule(self.now_s)
        if self.plan is not None:
            assert 0 < len(self.plan.sequences) <= config.max_num_seqs
            assert config.chunked_prefill_size < 0 or self.plan.num_tokens <= config.max_batch_tokens

    def update(self, fail: bool = False) -> None:
        """Run the step in flight, if any; its first sequence may fail."""
        if self.plan is None:
            return
        failed = [self.plan.sequences[0].request_id] if fail else []
        result = self.engine.step(self.plan, failed)
        self.plan = None
        for update in self.scheduler.update(result, self.now_s):
            self._note(update, failed)

    def steps(self, count: int) -> None:
        """Time passes."""
        for _ in range(count):
            self.schedule()
            self.update()

    def abort(self, which: int) -> None:
        """A client goes away, or aborts what has ended."""
        request = self._pick(which, *Status)
        if request is not None:
            known = self.scheduler.get(request.request_id) is not None
            assert self.scheduler.abort(request.request_id) == known
            self.ended.setdefault(request.request_id, FinishReason.ABORT)

    def finish(self, which: int) -> None:
        """A stop string is found in the text of a running request."""
        request = self._pick(which, Status.RUNNING)
        if request is not None:
            assert self.scheduler.finish(request.request_id, FinishReason.STOP)
            self.ended[request.request_id] = FinishReason.STOP

    def release(self, which: int) -> None:
        """Whoever asked to keep blocks is done with them."""
        request = self._pick(which, Status.FINISHED)
        if request is not None and self.scheduler.get(request.request_id) is not None:
            self.scheduler.release(request.request_id)

    def lend(self, which: int) -> None:
        """A transfer holds the full computed blocks of a request."""
        request = self._pick(which, Status.RUNNING, Status.FINISHED)
        if request is not None:
            blocks = request.block_table[: request.num_computed // self.block_size]
            self.cache.hold(blocks)
            self.lent.append(blocks)

    def give_back(self) -> None:
        """The oldest transfer ends."""
        if self.lent:
            self.cache.release(self.lent.pop(0))

    def flush(self) -> None:
        """The cache is emptied as far as it can be."""
        self.cache.flush()

    def configure(self, config: dict[str, Any]) -> None:
        """The operator changes everything."""
        self.scheduler.configure(replace(self.scheduler.config, **config))
        self.shortest_limit = min(self.shortest_limit, self.scheduler.max_known_tokens)
        self._collect()

    def check(self) -> None:
        """Everything that must hold between any two events."""
        self.scheduler.check()
        references = [0] * self.cache.num_blocks
        for blocks in (*self.lent, *(r.block_table for r in self.all.values())):
            for block in blocks:
                references[block] += 1
        assert references == [self.cache.num_references(b) for b in range(self.cache.num_blocks)]
        assert self.cache.num_free + self.cache.num_cached + self.cache.num_held == self.cache.num_blocks

    def close(self) -> None:
        """Let everything come to its end: every request ends, nothing is held."""
        while self.lent:
            self.give_back()
        for request in [r for r in self.all.values() if r.status is Status.LANDING]:
            self.scheduler.abort(request.request_id)
            self.ended[request.request_id] = FinishReason.ABORT
        self._drain()
        assert set(self.ended) == set(self.all), "a request never ended"
        for request in self.all.values():
            if self.scheduler.get(request.request_id) is not None:
                self.scheduler.release(request.request_id)
        self.check()
        assert self.cache.num_held == 0
        assert (self.scheduler.num_waiting, self.scheduler.num_running, self.scheduler.num_landing) == (0, 0, 0)

    def _drain(self) -> None:
        """Step until nobody has anything to compute; kept blocks go back when they stand in the way."""
        for _ in range(MAX_STEPS_TO_DRAIN):
            self.schedule()
            if self.plan is not None:
                self.update()
                continue
            kept = [r for r in self.all.values() if r.keep_blocks and r.status is Status.FINISHED and r.block_table]
            if not kept:
                return
            self.scheduler.release(kept[0].request_id)
        raise AssertionError("the scheduler does not come to an end")

    def _make(self, prompt: list[int], params: SamplingParams, priority: int, resumed: int, keep: bool) -> Request:
        self.now_s += 1
        return Request(
            request_id=f"r{len(self.all)}",
            prompt_ids=tuple(prompt),
            params=params,
            root=prefix_root(self.block_size, ""),
            block_size=self.block_size,
            output_ids=reference_output(prompt, params)[:resumed],
            priority=priority,
            arrival_s=self.now_s,
            keep_blocks=keep,
        )

    def _take_in(self, request: Request) -> None:
        self.all[request.request_id] = request
        self.given[request.request_id] = len(request.output_ids)
        self.prompt_logprobs[request.request_id] = []

    def _pick(self, which: int, *statuses: Status) -> Request | None:
        choices = [r for r in self.all.values() if r.status in statuses]
        return choices[which % len(choices)] if choices else None

    def _collect(self) -> None:
        for update in self.scheduler.take_ended():
            self._note(update, [])

    def _note(self, update: RequestUpdate, failed: list[str]) -> None:
        request = update.request
        assert request.request_id not in self.ended, "an update after the end"
        self.prompt_logprobs[request.request_id] += update.prompt_logprobs
        if update.token_id is not None:
            assert request.output_ids[update.position] == update.token_id
        if update.finish_reason is FinishReason.ERROR:
            assert request.error
            assert request.request_id in failed or request.num_tokens >= self.shortest_limit
            self.ended[request.request_id] = FinishReason.ERROR
        elif update.finish_reason is not None:
            self._note_end(request, update.finish_reason)

    def _note_end(self, request: Request, reason: FinishReason) -> None:
        """Check the whole output of a request that ended by itself."""
        self.ended[request.request_id] = reason
        expected = reference_output(request.prompt_ids, request.params)
        cut = reason is FinishReason.LENGTH and request.num_tokens >= self.shortest_limit
        assert request.output_ids == (expected[: len(request.output_ids)] if cut else expected)
        if reason is FinishReason.STOP:
            assert expected[-1] in request.params.stop_token_ids
        if request.params.prompt_logprobs is not None and len(request.output_ids) > self.given[request.request_id]:
            assert self.prompt_logprobs[request.request_id] == reference_prompt_logprobs(request.prompt_ids)
        self._check_cached_tokens(request)

    def _check_cached_tokens(self, request: Request) -> None:
        """What nobody computed for a request, plus what the engine did, is what it needed, each token once."""
        own = request.num_preemptions == 0 and request.request_id not in self.elsewhere
        if own and not self.given[request.request_id] and request.first_scheduled_s is not None:
            handed = request.num_tokens - 1 - self.engine.num_rows[request.request_id]
            assert request.num_cached_tokens == ({"l1": handed} if handed else {})
            assert handed % self.block_size == 0 and handed < len(request.prompt_ids)
