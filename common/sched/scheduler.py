"""Who computes what in the next step: moved by events, without clock or I/O.

::

    add ------------> waiting --admit--> running --schedule--> plan in flight --update--> running or ended
    reserve -> landing --landed*--> --resume--^

A step is `schedule() -> StepPlan`, then the engine runs it, then `update(result)`. Between the two everything else may
be called: blocks of a running plan are held, and what ends meanwhile is given back by `update`.

Invariants: one plan is in flight at most, and what it refers to does not change until its `update`; tables of requests
in a plan cover what it computes; running and landing requests take at most max_num_seqs seats (after a change of
configuration: as soon as some have left). When blocks run short the last in rank loses its own, so the first in rank
always gets on. Knows nothing about text, sockets, tensors or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.base.errors import InvalidRequest
from common.kv.block_cache import BlockCache
from common.sched.batch import demand, share_out, to_steps
from common.sched.config import Policy, SchedulerConfig
from common.sched.plan import SequenceStep, StepPlan, StepResult
from common.sched.request import FinishReason, Request, RequestUpdate, Status
from common.sched.roster import Roster
from common.sched.tables import BlockTables


class Admission(StrEnum):
    """What became of an `add`."""

    ACCEPTED = "accepted"
    OVERLOADED = "overloaded"


@dataclass(slots=True, frozen=True)
class Reservation:
    """Blocks for a request whose KV others have: those from `num_cached_blocks` on wait for their bytes.

    Attributes:
        request_id: of the landing request.
        block_ids: cover all known tokens; a copy.
        num_cached_blocks: leading ones that hold their KV already.
    """

    request_id: str
    block_ids: tuple[int, ...]
    num_cached_blocks: int


class Scheduler:
    """The requests of one worker over one block cache."""

    def __init__(self, cache: BlockCache, config: SchedulerConfig) -> None:
        """Start without requests; others may hold blocks of `cache` too."""
        self._cache = cache
        self._config = config
        self._tables = BlockTables(cache)
        self._roster = Roster(self._tables)
        self._plan: StepPlan | None = None
        self._num_steps = 0
        self._ended: list[RequestUpdate] = []

    @property
    def config(self) -> SchedulerConfig:
        """The configuration in force."""
        return self._config

    @property
    def num_waiting(self) -> int:
        """Requests that wait, with preempted ones."""
        return len(self._roster.waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of the requests that wait."""
        return self._roster.waiting.num_tokens

    @property
    def num_running(self) -> int:
        """Requests that take part in steps."""
        return len(self._roster.running)

    @property
    def num_landing(self) -> int:
        """Requests whose blocks are reserved for bytes that still arrive."""
        return len(self._roster.landing)

    @property
    def num_preemptions(self) -> int:
        """How often a running request lost its blocks so far."""
        return self._roster.num_preemptions

    @property
    def running_ids(self) -> list[str]:
        """Ids of the running requests, in order of rank."""
        return [r.request_id for r in self._roster.running]

    @property
    def in_flight(self) -> bool:
        """Tell whether a plan waits for its `update`."""
        return self._plan is not None

    @property
    def max_known_tokens(self) -> int:
        """Known tokens at which a request ends: the model's limit, or one more than all blocks hold."""
        return min(self._config.max_model_len, self._cache.num_blocks * self._config.block_size + 1)

    def get(self, request_id: str) -> Request | None:
        """Return a request that has not ended or whose blocks are still in use, else None."""
        return self._roster.get(request_id)

    def configure(self, config: SchedulerConfig) -> None:
        """Put another configuration in force from the next step on.

        Raises:
            InvalidRequest: the block size differs.
        """
        if config.block_size != self._config.block_size:
            raise InvalidRequest("block_size cannot change while blocks exist", param="block_size")
        self._config = config

    def add(self, request: Request) -> Admission:
        """Let a request wait for its turn; OVERLOADED, and it is not taken, when too many tokens wait.

        One whose output so far is all it may have (it moved here just before its end) is reported by `take_ended`.

        Raises:
            InvalidRequest: its id is taken, or it is too long for this worker.
        """
        self._require_possible(request)
        queued = self.num_waiting_tokens
        if queued and queued + request.num_tokens > self._config.max_waiting_tokens:
            return Admission.OVERLOADED
        self._roster.wait(request)
        self._end_at_the_door(request)
        return Admission.ACCEPTED

    def reserve(self, request: Request) -> Reservation | None:
        """Hold the cached prefix of a request and blocks for the rest of its known tokens, whose KV will be fetched.

        None, and it is not taken, when there is no room now: no seat, no blocks, or too many that have not landed.

        Raises:
            InvalidRequest: its id is taken, or it is too long for this worker.
        """
        self._require_possible(request)
        assert not request.num_missing_prompt_logprobs, f"request {request.request_id} must compute its whole prompt"
        unlanded = self._roster.num_unlanded_blocks
        max_new = self._config.max_landing_blocks - unlanded if unlanded else None
        if not self._has_seat() or not self._open(request, max_new):
            return None
        self._roster.land(request)
        return Reservation(request.request_id, tuple(request.block_table), request.num_computed // request.block_size)

    def landed(self, request_id: str, num_blocks: int) -> None:
        """Note that the first `num_blocks` blocks of a landing request hold verified KV; the full ones are indexed.

        The last known token still counts as not computed, and its block is not indexed: `resume` settles that.
        """
        request = self._roster.landing[request_id]
        assert num_blocks <= len(request.block_table), f"{num_blocks} of {len(request.block_table)} blocks landed"
        num_landed = min(num_blocks * request.block_size, request.num_tokens)
        request.num_landed = max(request.num_landed, num_landed)
        request.num_computed = min(request.num_landed, request.num_tokens - 1)
        self._tables.index(request, request.num_computed)

    def resume(self, request_id: str, token_id: int | None, now_s: float) -> FinishReason | None:
        """Let a landing request run: what has not landed is computed here.

        Args:
            request_id: a landing request.
            token_id: the next output token, drawn elsewhere; None when the next one is to be drawn here.
            now_s: the time.

        Returns:
            Why the request is over already, if that token ends it.
        """
        request = self._roster.landing[request_id]
        if token_id is not None:
            request.append(token_id)
            request.first_token_s = now_s
            request.num_computed = request.num_landed
            self._tables.index(request, request.num_computed)
        self._roster.run(request)
        return self._end_if_due(request)

    def schedule(self, now_s: float) -> StepPlan | None:
        """Decide the next step; None when nobody can compute anything now.

        The plan refers to the requests' own lists; nothing changes them before `update`. Requests that turn out to be
        impossible end here, see `take_ended`.
        """
        assert self._plan is None, "the plan before has not been updated"
        if self._grow_running() or not self._roster.running:
            self._admit()
        shares = share_out(self._roster.running, self._config)
        if not shares:
            return None
        for request, _ in shares:
            request.in_flight = True
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now_s
        self._num_steps += 1
        self._plan = StepPlan(self._num_steps, to_steps(shares))
        return self._plan

    def update(self, result: StepResult, now_s: float) -> list[RequestUpdate]:
        """Fold in what the engine computed; returns what each request of the plan got, but for those that ended."""
        assert self._plan is not None and result.step_id == self._plan.step_id, f"result of step {result.step_id}"
        plan, self._plan = self._plan, None
        updates = [self._fold(step, result, now_s) for step in plan.sequences]
        return [u for u in updates if u is not None]

    def take_ended(self) -> list[RequestUpdate]:
        """Return the requests that ended in `add` or `schedule`, and forget them."""
        ended, self._ended = self._ended, []
        return ended

    def abort(self, request_id: str) -> bool:
        """End a request whatever its state and give back its blocks, kept ones too; False when it is not known."""
        request = self._roster.get(request_id)
        if request is None:
            return False
        if request.status is Status.FINISHED:
            self.release(request_id)
        else:
            self._roster.end(request, FinishReason.ABORT)
        return True

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request for a reason found outside (a stop string); False when it is over already."""
        request = self._roster.get(request_id)
        if request is None or request.status is Status.FINISHED:
            return False
        self._roster.end(request, reason)
        return True

    def release(self, request_id: str) -> None:
        """Give back the blocks of an ended request that kept them."""
        request = self._roster.get(request_id)
        assert request is not None, f"release of unknown request {request_id}"
        request.keep_blocks = False
        self._roster.forget_if_unused(request)

    def check(self) -> None:
        """Assert the invariants, those of the cache included: for tests and diagnosis."""
        self._cache.check()
        self._roster.check()

    def _require_possible(self, request: Request) -> None:
        assert request.block_size == self._config.block_size, f"request in blocks of {request.block_size}"
        if self._roster.get(request.request_id) is not None:
            raise InvalidRequest(f"request {request.request_id} exists", reason="duplicate_request", param="request_id")
        if len(request.prompt_ids) >= self.max_known_tokens:
            raise InvalidRequest(self._too_long(request), reason="prompt_too_long", param="prompt")

    def _too_long(self, request: Request) -> str:
        return f"{request.num_tokens} tokens leave no room for output: a request ends at {self.max_known_tokens} here"

    def _has_seat(self) -> bool:
        return self._roster.num_seated < self._config.max_num_seqs

    def _open(self, request: Request, max_new: int | None = None) -> bool:
        """Get blocks for a request and note the prefix found; what it finds after a preemption it computed itself."""
        idle = self._roster.num_seated == 0
        opened = self._tables.open(request, self._config, idle=idle, max_new=max_new)
        if opened and not request.num_preemptions:
            request.num_cached_tokens["l1"] = min(request.num_computed, len(request.prompt_ids))
        return opened

    def _grow_running(self) -> bool:
        """Make every table cover its known tokens, the last in rank paying with their own; False when one had to."""
        running, before = self._roster.running, self.num_preemptions
        position = 0
        while position < len(running):
            if self._tables.grow(running[position]):
                position += 1
            else:
                self._roster.preempt(running[-1])
        return self.num_preemptions == before

    def _admit(self) -> None:
        """Move waiting requests to running, in the order of the policy, while seats, budget and blocks last."""
        config = self._config
        if not self._has_seat() and config.policy is not Policy.PRIORITY:
            return
        for request in self._roster.waiting.next(config.max_num_seqs, config, self._cache.match):
            if self._end_at_the_door(request):
                continue
            if not self._has_budget(request) or not self._make_room(request):
                return
            self._roster.run(request)

    def _has_budget(self, request: Request) -> bool:
        """Tell whether a step has tokens left for a request after those that go before it."""
        before = (r for r in self._roster.running if r.num_uncomputed == 1 or r.rank < request.rank)
        return sum(demand(r, self._config) for r in before) < self._config.max_batch_tokens

    def _make_room(self, request: Request) -> bool:
        """Get a seat and blocks for a waiting request, under `priority` at the cost of lower ones; False: not now."""
        running = self._roster.running
        while not self._has_seat() or not self._open(request):
            may_preempt = self._config.policy is Policy.PRIORITY and running
            if not may_preempt or running[-1].priority >= request.priority:
                return False
            self._roster.preempt(running[-1])
        return True

    def _fold(self, step: SequenceStep, result: StepResult, now_s: float) -> RequestUpdate | None:
        """Bring one request of the plan up to date; None when it ended while the step ran."""
        request = self._roster.get(step.request_id)
        assert request is not None, f"request {step.request_id} of the plan is gone"
        request.in_flight = False
        error = result.failed.get(step.request_id)
        if error is None:
            request.num_computed = step.start + len(step.token_ids)
            self._tables.index(request, request.num_computed)
        else:
            self._tables.distrust(request)
        if request.status is Status.FINISHED:
            self._roster.forget_if_unused(request)
            return None
        if error is not None:
            return self._fail(request, error)
        return self._advance(request, step, result, now_s)

    def _advance(self, request: Request, step: SequenceStep, result: StepResult, now_s: float) -> RequestUpdate:
        """Append the token that was drawn, if one was, and end the request if that is due."""
        num_computed = request.num_computed
        prompt_logprobs = result.prompt_logprobs.get(request.request_id, ())[request.num_prompt_logprobs - step.start :]
        request.num_prompt_logprobs += len(prompt_logprobs)
        if step.sample is None:
            return RequestUpdate(request, prompt_logprobs=prompt_logprobs, num_computed=num_computed)
        token = result.sampled[request.request_id]
        request.append(token.token_id)
        if request.first_token_s is None:
            request.first_token_s = now_s
        return RequestUpdate(
            request,
            token_id=token.token_id,
            position=len(request.output_ids) - 1,
            logprobs=token.logprobs,
            digest=token.digest,
            prompt_logprobs=prompt_logprobs,
            num_computed=num_computed,
            finish_reason=self._end_if_due(request),
        )

    def _end_if_due(self, request: Request) -> FinishReason | None:
        """End a request whose output so far is all it may have; returns why, None when it goes on."""
        due = request.due_finish(self.max_known_tokens)
        if due is FinishReason.STOP:
            request.stop_token = request.output_ids[-1]
        if due is not None:
            self._roster.end(request, due)
        return due

    def _end_at_the_door(self, request: Request) -> bool:
        """End a waiting request that can get no token more; the limits may have changed while it waited."""
        due = self._end_if_due(request)
        if due is not None:
            self._ended.append(RequestUpdate(request, finish_reason=due))
        elif request.num_tokens >= self.max_known_tokens:
            self._ended.append(self._fail(request, self._too_long(request)))
        return request.status is Status.FINISHED

    def _fail(self, request: Request, error: str) -> RequestUpdate:
        request.error = error
        self._roster.end(request, FinishReason.ERROR)
        return RequestUpdate(request, finish_reason=FinishReason.ERROR)
