"""The scheduler under anything at any time, against what each request must produce on its own.

Requests arrive, resume, land, are aborted, are finished and kept; blocks are lent and flushed; the configuration
changes; all of it also while a plan is in flight. Tokens, prompt logprobs and cached tokens must be right, blocks
conserved, and in the end every request has ended and nothing is held.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.base.errors import InvalidRequest
from common.kv.block_cache import BlockCache
from common.kv.hashing import prefix_root
from common.sched.config import Policy, SchedulerConfig
from common.sched.params import SamplingParams
from common.sched.plan import StepPlan, TokenLogprobs
from common.sched.request import FinishReason, Request, RequestUpdate, Status
from common.sched.scheduler import Admission, Scheduler
from tests.support.fake_engine import FakeEngine, next_token, reference_output, reference_prompt_logprobs

MAX_STEPS_TO_DRAIN = 3000

prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=24),
    st.integers(1, 40).map(lambda n: [3] * n),
    st.lists(st.integers(0, 1), min_size=0, max_size=6).map(lambda tail: [2] * 17 + tail),
)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 24),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.sampled_from([(), (7,), (1, 2)]),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
)
configs = st.builds(
    dict,
    max_num_seqs=st.integers(1, 6),
    max_batch_tokens=st.integers(6, 40),
    chunked_prefill_size=st.sampled_from([1, 3, 16, -1]),
    policy=st.sampled_from(list(Policy)),
    growth_reserve_blocks=st.integers(0, 3),
    max_model_len=st.sampled_from([20, 64, 1000]),
    max_landing_blocks=st.sampled_from([2, 1000]),
    high_water_ratio=st.sampled_from([0.5, 1.0]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """One worker: scheduler, cache, fake engine."""

    engine_class = FakeEngine

    @initialize(block_size=st.sampled_from([1, 4, 16]), room=st.integers(30, 90), config=configs)
    def start(self, block_size: int, room: int, config: dict[str, object]) -> None:
        """Make a worker whose pool holds about `room` tokens."""
        self.block_size = block_size
        self.cache = BlockCache(-(-room // block_size), max_events=50)
        self.config = SchedulerConfig(block_size=block_size, max_waiting_tokens=300, **config)  # type: ignore[arg-type]
        self.scheduler = Scheduler(self.cache, self.config)
        self.engine = self.engine_class(
            self.cache.num_blocks, block_size, lambda block: self.cache.num_references(block) == 1
        )
        self.plan: StepPlan | None = None
        self.now_s = 0.0
        self.all: dict[str, Request] = {}
        self.given: dict[str, int] = {}
        self.ended: dict[str, FinishReason | None] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.elsewhere: set[str] = set()
        self.lent: list[list[int]] = []
        self.shrunk = self.scheduler.max_known_tokens

    def make(self, prompt: list[int], params: SamplingParams, priority: int, resumed: int, keep: bool) -> Request:
        """Make a request that has `resumed` output tokens already."""
        self.now_s += 1
        request = Request(
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
        self.all[request.request_id] = request
        self.given[request.request_id] = len(request.output_ids)
        self.prompt_logprobs[request.request_id] = []
        return request

    @rule(prompt=prompts, params=sampling, priority=st.integers(0, 2), resumed=st.integers(0, 5), keep=st.booleans())
    def arrive(self, prompt: list[int], params: SamplingParams, priority: int, resumed: int, keep: bool) -> None:
        request = self.make(prompt, params, priority, resumed, keep)
        try:
            outcome = self.scheduler.add(request)
        except InvalidRequest:
            assert len(prompt) >= self.scheduler.max_known_tokens
            outcome = None
        if outcome is Admission.ACCEPTED and request.status is Status.WAITING:
            with pytest.raises(InvalidRequest):
                self.scheduler.add(request)
        elif outcome is not Admission.ACCEPTED:
            del self.all[request.request_id]
        self.collect()

    @rule(prompt=prompts, params=sampling, priority=st.integers(0, 2), resumed=st.integers(0, 5), keep=st.booleans())
    def reserve(self, prompt: list[int], params: SamplingParams, priority: int, resumed: int, keep: bool) -> None:
        params = replace(params, prompt_logprobs=None)
        request = self.make(prompt, params, priority, resumed, keep)
        try:
            reservation = self.scheduler.reserve(request)
        except InvalidRequest:
            assert len(prompt) >= self.scheduler.max_known_tokens
            reservation = None
        if reservation is None:
            del self.all[request.request_id]
            return
        assert list(reservation.block_ids) == request.block_table
        assert len(request.block_table) == request.num_blocks_for(request.num_tokens)
        assert reservation.num_cached_blocks * self.block_size == request.num_computed

    @rule(data=st.data(), count=st.integers(1, 5))
    def land(self, data: st.DataObject, count: int) -> None:
        """Bytes of the next blocks arrive from a peer."""
        request = self.pick(data, Status.LANDING)
        if request is None:
            return
        self.elsewhere.add(request.request_id)
        num_here = request.num_landed // self.block_size
        num_blocks = min(num_here + count, len(request.block_table))
        start, stop = num_here * self.block_size, min(num_blocks * self.block_size, request.num_tokens)
        self.engine.write(request.block_table, start, request.tokens(start, stop))
        self.scheduler.landed(request.request_id, num_blocks)

    @rule(data=st.data(), with_token=st.booleans())
    def resume(self, data: st.DataObject, with_token: bool) -> None:
        request = self.pick(data, Status.LANDING)
        if request is None:
            return
        over = request.due_finish(self.scheduler.max_known_tokens) is not None
        token = next_token(request.tokens(0, request.num_tokens)) if with_token and not over else None
        reason = self.scheduler.resume(request.request_id, token, self.now_s)
        if reason is not None:
            self.note_end(request, reason)

    @rule()
    def schedule(self) -> None:
        self.now_s += 1
        if self.plan is not None:
            return
        self.plan = self.scheduler.schedule(self.now_s)
        if self.plan is not None:
            assert self.plan.sequences
            assert len(self.plan.sequences) <= self.scheduler.config.max_num_seqs
            if self.scheduler.config.chunked_prefill_size > 0:
                assert self.plan.num_tokens <= self.scheduler.config.max_batch_tokens

    @precondition(lambda self: self.plan is not None)
    @rule(failures=st.integers(0, 30))
    def update(self, failures: int = 30) -> None:
        assert self.plan is not None
        failed = [self.plan.sequences[0].request_id] if failures == 0 else []
        result = self.engine.step(self.plan, failed)
        self.plan = None
        for update in self.scheduler.update(result, self.now_s):
            self.note(update, failed)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.pick(data, *Status)
        if request is not None:
            known = self.scheduler.get(request.request_id) is not None
            assert self.scheduler.abort(request.request_id) == known
            self.ended.setdefault(request.request_id, FinishReason.ABORT)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = self.pick(data, Status.RUNNING, Status.FINISHED)
        if request is not None and self.scheduler.finish(request.request_id, FinishReason.STOP):
            self.ended[request.request_id] = FinishReason.ABORT

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request = self.pick(data, Status.FINISHED)
        if request is not None and self.scheduler.get(request.request_id) is not None and request.keep_blocks:
            assert len(request.block_table) * self.block_size >= request.num_computed
            self.scheduler.release(request.request_id)

    @rule(data=st.data())
    def lend(self, data: st.DataObject) -> None:
        """A transfer holds the computed blocks of a request."""
        request = self.pick(data, Status.RUNNING, Status.FINISHED)
        if request is not None:
            blocks = request.block_table[: request.num_computed // self.block_size]
            self.cache.hold(blocks)
            self.lent.append(blocks)

    @precondition(lambda self: self.lent)
    @rule()
    def give_back(self) -> None:
        self.cache.release(self.lent.pop())

    @rule()
    def flush(self) -> None:
        self.cache.flush()

    @rule(config=configs)
    def configure(self, config: dict[str, object]) -> None:
        self.scheduler.configure(replace(self.scheduler.config, **config))
        self.shrunk = min(self.shrunk, self.scheduler.max_known_tokens)
        self.collect()

    def pick(self, data: st.DataObject, *statuses: Status) -> Request | None:
        """Draw a request with one of the statuses."""
        choices = [r for r in self.all.values() if r.status in statuses]
        return data.draw(st.sampled_from(choices)) if choices else None

    def collect(self) -> None:
        """Note the requests that ended outside of an update."""
        for update in self.scheduler.take_ended():
            self.note(update, ())

    def note(self, update: RequestUpdate, failed: list[str] | tuple[()]) -> None:
        """Check one update."""
        request = update.request
        assert request.request_id not in self.ended, "an update after the end"
        self.prompt_logprobs[request.request_id] += update.prompt_logprobs
        if update.token_id is not None:
            assert request.output_ids[update.position] == update.token_id
        if update.finish_reason is FinishReason.ERROR:
            assert request.error
            assert request.request_id in failed or request.num_tokens >= self.shrunk
            self.ended[request.request_id] = FinishReason.ERROR
        elif update.finish_reason is not None:
            self.note_end(request, update.finish_reason)

    def note_end(self, request: Request, reason: FinishReason) -> None:
        """Check the whole output of a request that ended by itself."""
        self.ended[request.request_id] = reason
        expected = reference_output(request.prompt_ids, request.params)
        cut = reason is FinishReason.LENGTH and request.num_tokens >= self.shrunk
        assert request.output_ids == (expected[: len(request.output_ids)] if cut else expected)
        if reason is FinishReason.STOP:
            assert request.stop_token == expected[-1] and request.stop_token in request.params.stop_token_ids
        if request.params.prompt_logprobs is not None and len(request.output_ids) > self.given[request.request_id]:
            assert self.prompt_logprobs[request.request_id] == reference_prompt_logprobs(request.prompt_ids)
        self.check_cached_tokens(request)

    def check_cached_tokens(self, request: Request) -> None:
        """What nobody computed for a request plus what the engine did is what it needed, each token once."""
        own = request.num_preemptions == 0 and request.request_id not in self.elsewhere
        if own and not self.given[request.request_id] and request.first_scheduled_s is not None:
            handed = request.num_tokens - 1 - self.engine.num_rows[request.request_id]
            assert request.num_cached_tokens == {"l1": handed}
            assert handed % self.block_size == 0 and handed < len(request.prompt_ids)

    @invariant()
    def holds(self) -> None:
        self.scheduler.check()
        references = [0] * self.cache.num_blocks
        for request in self.all.values():
            for block in request.block_table:
                references[block] += 1
        for blocks in self.lent:
            for block in blocks:
                references[block] += 1
        assert references == [self.cache.num_references(b) for b in range(self.cache.num_blocks)]
        assert self.cache.num_free + self.cache.num_cached + self.cache.num_held == self.cache.num_blocks

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while self.lent:
            self.give_back()
        for request in [r for r in self.all.values() if r.status is Status.LANDING]:
            self.scheduler.abort(request.request_id)
            self.ended[request.request_id] = FinishReason.ABORT
        steps = self.drain()
        assert steps < MAX_STEPS_TO_DRAIN, "the scheduler does not come to an end"
        assert set(self.ended) == set(self.all), "a request never ended"
        for request in self.all.values():
            if self.scheduler.get(request.request_id) is not None:
                self.scheduler.release(request.request_id)
        self.holds()
        assert self.cache.num_held == 0
        assert (self.scheduler.num_waiting, self.scheduler.num_running, self.scheduler.num_landing) == (0, 0, 0)

    def drain(self) -> int:
        """Step until nobody has anything to compute; kept blocks go back when they stand in the way."""
        for step in range(MAX_STEPS_TO_DRAIN):
            self.schedule()
            if self.plan is not None:
                self.update()
                continue
            kept = [r for r in self.all.values() if r.keep_blocks and r.status is Status.FINISHED and r.block_table]
            if not kept:
                return step
            self.scheduler.release(kept[0].request_id)
        return MAX_STEPS_TO_DRAIN


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
