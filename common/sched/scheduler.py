"""Who computes what in the next step: moved by events, without clock or I/O.

::

    add ------------> waiting --admit--> running --schedule--> plan in flight --update--> running or ended
                         | admit: L2 has more   ^
                         v                      |
    reserve --------> landing --landed*--> --resume

A step is `schedule() -> StepPlan`, then the engine runs it, then `update(result)`. Between the two everything else may
be called: blocks of a running plan are held, and what ends meanwhile is given back by `update`.

Invariants: one plan is in flight at most, and what it refers to does not change until its `update`; the tables of the
requests in a plan cover what it computes. Who gets seats and blocks is decided in `seating`, where requests stand in
`roster`, what a table holds in `tables`, how a step's budget is shared out in `batch`. Knows nothing about text,
sockets, tensors or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.base.errors import InvalidRequest
from common.kv.block_cache import BlockCache
from common.sched.batch import share_out, to_steps
from common.sched.config import SchedulerConfig
from common.sched.plan import SampledToken, SequenceStep, StepPlan, StepResult
from common.sched.request import FinishReason, Request, RequestUpdate, Status
from common.sched.roster import Roster
from common.sched.seating import Seating
from common.sched.tables import BlockTables
from common.sched.tiering import Load, LowerTiers, NothingBelow


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

    def __init__(self, cache: BlockCache, config: SchedulerConfig, lower: LowerTiers | None = None) -> None:
        """Start without requests; others may hold blocks of `cache` too. `lower`: the tiers below it, if any."""
        self._cache = cache
        self._config = config
        self._tables = BlockTables(cache, lower or NothingBelow())
        self._roster = Roster(self._tables)
        self._seating = Seating(cache, self._tables, self._roster)
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

        Waiting requests that are too long for it are reported by `take_ended`; running ones end at their next token.

        Raises:
            InvalidRequest: the block size differs.
        """
        if config.block_size != self._config.block_size:
            raise InvalidRequest("block_size cannot change while blocks exist", param="block_size")
        self._config = config
        for request in list(self._roster.waiting):
            if self._roster.end_if_impossible(request, self.max_known_tokens):
                self._ended.append(_ended(request))

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
        if self._roster.end_if_due(request, self.max_known_tokens) is not None:
            self._ended.append(_ended(request))
        return Admission.ACCEPTED

    def reserve(self, request: Request) -> Reservation | None:
        """Hold the cached prefix of a request and blocks for the rest of its known tokens, whose KV will be fetched.

        None, and it is not taken, when there is no room now: no seat, no blocks, too many that have not landed, or
        somebody waits who could not be seated.

        Raises:
            InvalidRequest: its id is taken, or it is too long for this worker.
        """
        self._require_possible(request)
        assert not request.num_missing_prompt_logprobs, f"request {request.request_id} must compute its whole prompt"
        if not self._seating.reserve(request, self._config):
            return None
        return Reservation(request.request_id, tuple(request.block_table), request.num_computed // request.block_size)

    def load(self, request_id: str) -> Load | None:
        """Hold what L2 has of a landing request's path beyond what has landed; None when that is not worth a copy."""
        return self._tables.find_load(self._roster.landing[request_id], self._config)

    def take_loads(self) -> list[Load]:
        """Return what `schedule` decided to load since the last call; each ends with `resume`."""
        loads, self._seating.loads = self._seating.loads, []
        return loads

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
        return self._roster.end_if_due(request, self.max_known_tokens)

    def schedule(self, now_s: float) -> StepPlan | None:
        """Decide the next step; None when nobody can compute anything now.

        The plan refers to the requests' own lists; nothing changes them before `update`.
        """
        assert self._plan is None, "the plan before has not been updated"
        if self._seating.grow_running() or not self._roster.running:
            self._seating.admit(self._config)
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
        """Return the requests that ended in `add` or `configure`, and forget them."""
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
            message = f"a prompt of {len(request.prompt_ids)} tokens: a request ends at {self.max_known_tokens} here"
            raise InvalidRequest(message, reason="prompt_too_long", param="prompt")

    def _fold(self, step: SequenceStep, result: StepResult, now_s: float) -> RequestUpdate | None:
        """Bring one request of the plan up to date; None when it ended while the step ran."""
        request = self._roster.get(step.request_id)
        assert request is not None, f"request {step.request_id} of the plan is gone"
        request.in_flight = False
        error = result.failed.get(step.request_id)
        if error is None:
            # What is late is drawn by a later step, from the same logits: the last known token is computed again.
            request.num_computed = step.start + len(step.token_ids) - (step.request_id in result.late)
            if request.num_computed // request.block_size > step.start // request.block_size:
                self._tables.index(request, request.num_computed)
        else:
            self._tables.distrust(request)
        if request.status is Status.FINISHED:
            self._roster.forget_if_unused(request)
            return None
        request.refused = step.request_id in result.refused
        error = error or result.refused.get(step.request_id)
        if error is not None:
            request.error = error
            self._roster.end(request, FinishReason.ERROR)
            return _ended(request)
        return self._advance(request, step, result, now_s)

    def _advance(self, request: Request, step: SequenceStep, result: StepResult, now_s: float) -> RequestUpdate:
        """Append the token that was drawn, if one was, and end the request if that is due."""
        num_computed = request.num_computed
        prompt_logprobs = result.prompt_logprobs.get(request.request_id, ())[request.num_prompt_logprobs - step.start :]
        request.num_prompt_logprobs += len(prompt_logprobs)
        if step.sample is None or request.request_id in result.late:
            return RequestUpdate(request, prompt_logprobs=prompt_logprobs, num_computed=num_computed)
        token = result.sampled[request.request_id]
        position = len(request.output_ids)
        if request.first_token_s is None:
            request.first_token_s = now_s
        finish_reason = self._append(request, token)
        return RequestUpdate(
            request,
            token_id=token.token_id,
            position=position,
            logprobs=token.logprobs,
            digest=token.digest,
            forced_ids=request.output_ids[position + 1 :],
            prompt_logprobs=prompt_logprobs,
            num_computed=num_computed,
            finish_reason=finish_reason,
        )

    def _append(self, request: Request, token: SampledToken) -> FinishReason | None:
        """Append the drawn token and those it forces, up to the one that ends the request; returns why, if one does."""
        new = (token.token_id, *token.forced_ids)
        for index, token_id in enumerate(new, start=1):
            request.append(token_id)
            if token.complete and index == len(new):
                self._roster.end(request, FinishReason.STOP)
                return FinishReason.STOP
            due = self._roster.end_if_due(request, self.max_known_tokens)
            if due is not None:
                return due
        return None


def _ended(request: Request) -> RequestUpdate:
    return RequestUpdate(request, finish_reason=request.finish_reason)
