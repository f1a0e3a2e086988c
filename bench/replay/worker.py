"""A simulated worker: one queue, one KV pool, one step after the other.

It schedules as Pando's worker and vLLM do: running requests first, in order, then waiting ones first come first served,
within a budget of tokens and a number of requests; prompts in chunks; a request enters when all its known tokens fit
beside those that are promised; without room the last that entered is put back to the head of the queue. A step is the
time of its prompt tokens plus that of its decoding requests, and every request whose known tokens are all computed gets
a token at its end.

While only decoding goes on, many steps are run as one (`start` plans them, `cut` shortens them when somebody comes):
the same times, much less work. Knows nothing about routers; time is an argument. Deterministic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import accumulate, count

from bench.replay.cache import PrefixCache
from bench.replay.job import Emission, Job, WorkerShape

MIN_MEASURED_TOKENS = 32
SPEED_WEIGHT = 0.2
"""How a worker measures the prefill speed that it tells: as the live one."""


class SimWorker:
    """One worker."""

    def __init__(self, shape: WorkerShape) -> None:
        """Start idle and empty."""
        self.shape = shape
        self.cache = PrefixCache(shape.num_blocks)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.prefill_tokens_per_s = 0.0
        self._ends: list[float] = []
        self._budget = 0
        self._names: Iterator[int] = count()

    @property
    def busy(self) -> bool:
        """Whether a step runs."""
        return bool(self._ends)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that are not computed."""
        waiting = sum(job.num_known for job in self.waiting)
        return waiting + sum(max(job.num_prompt - job.num_computed, 0) for job in self.running)

    def fits(self, job: Job) -> bool:
        """Whether the job could run here alone."""
        return self._num_blocks(job.num_known + job.num_to_generate) <= self.shape.num_blocks

    def enqueue(self, job: Job) -> None:
        """Take a job; `start` or `cut` come next."""
        assert self.fits(job), f"a job of {job.num_known} tokens"
        self.waiting.append(job)

    def start(self, now_s: float) -> float | None:
        """Begin a step, or several as one; returns its end, None when there is nothing to do."""
        assert not self._ends, "a step runs already"
        self._budget = self.shape.max_step_tokens
        preemptions = self.num_preemptions
        num_prefill = self._schedule_running()
        if preemptions == self.num_preemptions:
            num_prefill += self._admit()
        working = [job for job in self.running if job.step_tokens]
        if not working:
            return None
        decoding = [job for job in working if job.num_computed >= job.num_prompt]
        context = sum(job.num_known for job in decoding)
        num_steps = 1 if len(decoding) < len(working) else self._num_steps(decoding)
        computed_s = now_s + self.shape.times.prefill_s(num_prefill)
        self._ends = self._decode_ends(computed_s, len(decoding), context, num_steps)
        if num_prefill >= MIN_MEASURED_TOKENS:
            self._measure(num_prefill / (self._ends[0] - now_s))
        return self._ends[-1]

    def cut(self, now_s: float) -> float:
        """Let the running steps end with the one that runs at `now_s`; returns its end."""
        assert self._ends, "no step runs"
        last = min(bisect_left(self._ends, now_s), len(self._ends) - 1)
        del self._ends[last + 1 :]
        return self._ends[last]

    def finish(self) -> list[Emission]:
        """End the step; returns who got tokens, in order of entry."""
        num_steps = len(self._ends)
        self._ends = []
        emissions = []
        for job in self.running:
            if not job.step_tokens:
                continue
            computed = job.step_tokens + num_steps - 1
            job.step_tokens = 0
            job.num_computed += computed
            self.num_computed_tokens += computed
            self._index(job, job.num_computed)
            if job.num_computed == job.num_known + num_steps - 1:
                job.num_known += num_steps
                job.num_generated += num_steps
                emissions.append(Emission(job, num_steps, job.num_generated == job.num_to_generate))
        done = [emission.job for emission in emissions if emission.finished]
        for job in done:
            self._release(job)
        if done:
            self.running = [job for job in self.running if job.num_generated < job.num_to_generate]
        return emissions

    def _measure(self, tokens_per_s: float) -> None:
        known = self.prefill_tokens_per_s
        self.prefill_tokens_per_s = known + SPEED_WEIGHT * (tokens_per_s - known) if known else tokens_per_s

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.shape.block_size)

    def _schedule_running(self) -> int:
        """Give running jobs their tokens; returns the prompt tokens among them."""
        num_prefill = 0
        position = 0
        while position < len(self.running) and self._budget:
            job = self.running[position]
            tokens = min(job.num_known - job.num_computed, self._budget)
            if self._grow(job, job.num_computed + tokens):
                num_prefill += self._schedule(job, tokens)
                position += 1
        return num_prefill

    def _schedule(self, job: Job, tokens: int) -> int:
        job.step_tokens = tokens
        self._budget -= tokens
        if self.shape.share_when_scheduled:
            self._index(job, job.num_computed + tokens)
        return tokens if job.num_computed < job.num_prompt else 0

    def _grow(self, job: Job, num_tokens: int) -> bool:
        """Let the job hold blocks for so many tokens; False: it had to go itself."""
        lacking = self._num_blocks(num_tokens) - job.num_blocks
        if lacking <= 0:
            return True
        while not self.cache.allocate(lacking):
            victim = self.running.pop()
            self._preempt(victim)
            if victim is job:
                return False
        self._take(job, lacking)
        return True

    def _preempt(self, job: Job) -> None:
        assert self.running, "the only running job does not fit"
        self.num_preemptions += 1
        self._release(job)
        job.num_computed = job.step_tokens = 0
        self.waiting.appendleft(job)

    def _admit(self) -> int:
        """Let waiting jobs in; returns the prompt tokens they get."""
        num_prefill = 0
        promised = sum(max(self._num_blocks(job.num_known) - job.num_blocks, 0) for job in self.running)
        while self.waiting and len(self.running) < self.shape.max_num_seqs and self._budget:
            job = self.waiting[0]
            entered = self._enter(job, promised)
            if not entered:
                break
            self.waiting.popleft()
            self.running.append(job)
            tokens = min(job.num_known - job.num_computed, self._budget)
            grown = self._grow(job, job.num_computed + tokens)
            assert grown, "an admitted job has room"
            num_prefill += self._schedule(job, tokens)
            promised += self._num_blocks(job.num_known) - job.num_blocks
        return num_prefill

    def _enter(self, job: Job, promised: int) -> bool:
        """Hold what is here of a job's blocks and land what comes from elsewhere; False when it does not fit now."""
        block_size = self.shape.block_size
        found = min(self.cache.match(job.hashes), (job.num_known - 1) // block_size)
        head = job.hashes[:found]
        held = self.cache.num_held
        self.cache.acquire(head)
        lacking = self._num_blocks(job.num_known) - found
        if lacking + promised > self.cache.num_blocks - self.cache.num_held:
            self.cache.release(head, 0)
            assert held == self.cache.num_held, f"{held} blocks were held, now {self.cache.num_held}"
            return False
        job.shared = head
        job.num_indexed = job.num_blocks = found
        job.num_computed = found * block_size
        if job.num_landed > job.num_computed:
            self._land(job)
        if job.num_cached is None:
            job.num_cached = job.num_computed
        return True

    def _land(self, job: Job) -> None:
        lacking = self._num_blocks(job.num_landed) - job.num_blocks
        landed = self.cache.allocate(lacking)
        assert landed, "an admitted job has room"
        self._take(job, lacking)
        job.num_computed = job.num_landed
        self._index(job, job.num_landed)

    def _index(self, job: Job, num_tokens: int) -> None:
        """Share the job's full blocks up to there; those of the output are named as they fill: nobody asks for them."""
        for position in range(job.num_indexed, num_tokens // self.shape.block_size):
            if position == len(job.hashes):
                job.hashes.append(b"output" + job.index.to_bytes(4, "big") + next(self._names).to_bytes(6, "big"))
            name = job.hashes[position]
            job.num_private -= self.cache.index(name)
            job.shared.append(name)
            job.num_indexed = position + 1

    def _release(self, job: Job) -> None:
        self.cache.release(job.shared, job.num_private)
        job.shared, job.num_private, job.num_blocks, job.num_indexed = [], 0, 0, 0

    @staticmethod
    def _take(job: Job, num_blocks: int) -> None:
        job.num_blocks += num_blocks
        job.num_private += num_blocks

    def _num_steps(self, decoding: list[Job]) -> int:
        """How many steps can run before a job ends or needs a block."""
        block_size = self.shape.block_size
        left = min(
            min(job.num_to_generate - job.num_generated, job.num_blocks * block_size - job.num_known + 1)
            for job in decoding
        )
        return max(min(left, self.shape.max_merged_steps), 1)

    def _decode_ends(self, now_s: float, num_decoding: int, context: int, num_steps: int) -> list[float]:
        if not num_decoding:
            return [now_s]
        decode_s = self.shape.times.decode_s
        capacity = self.shape.num_blocks * self.shape.block_size
        steps = (decode_s((context + step * num_decoding) / capacity) for step in range(num_steps))
        return list(accumulate(steps, initial=now_s))[1:]
