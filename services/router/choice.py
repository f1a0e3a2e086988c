"""One choice of one request: place it, pass its frames on, and when its worker fails, place it again.

::

    place -> attempt -> frames ... finish                          done
      ^         |
      |         '-- failed, healed elsewhere, attempts left        retry (nothing sent yet) or migrate (after it)
      '-------------'       else                                   the error ends the request

Load is charged when a plan is made and released when its attempt ends, however it ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from common.base.clock import Clock
from common.base.errors import DeadlineExceeded, Leg, PandoError, PeerLost
from common.base.logging import Logger
from common.tokenizer.tokenizer import Tokenizer
from pando.v1 import inference_pb2, types_pb2
from services.router.closing import closing
from services.router.config import RouterConfig
from services.router.convert import decode_request
from services.router.job import Job
from services.router.loop import Fleet
from services.router.metrics import TIERS, RequestTrace, RouterMetrics
from services.router.placement import Placement
from services.router.policy import Plan, Task, plan
from services.router.prefix_view import WorkerKey
from services.router.retry import Retries
from services.router.running import Ticket
from services.router.stitch import Stitch
from services.router.worker_rpc import WorkerRpc

Frame = inference_pb2.GenerateResponse


@dataclass(slots=True, frozen=True)
class Desk:
    """What every choice needs; made once by `__main__`."""

    config: RouterConfig
    fleet: Fleet
    rpc: WorkerRpc
    tokenizer: Tokenizer
    metrics: RouterMetrics
    clock: Clock
    log: Logger


@dataclass(slots=True)
class Hints:
    """What the prefix view cannot know yet: blocks of the prompt by worker, and who may still wait for them."""

    matches: dict[WorkerKey, int] = field(default_factory=dict)
    landing: set[WorkerKey] = field(default_factory=set)


class Choice:
    """Runs one choice; iterate `frames` once.

    Args:
        hints: where the first choice's blocks are; read at every placement.
    """

    def __init__(
        self,
        desk: Desk,
        job: Job,
        index: int,
        *,
        ticket: Ticket,
        trace: RequestTrace,
        hints: Hints,
    ) -> None:
        self._desk = desk
        self._job = job
        self._index = index
        self._ticket = ticket
        self._trace = trace
        self._hints = hints
        self._stitch = Stitch(job.output_ids, job.text_offset)
        self._retries = Retries(desk.config.max_attempts)
        self._prompt_sent = False
        self.placement: Placement | None = None

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield the choice's frames, without gap or repetition, the last one with its finish reason.

        Raises:
            PandoError: what ended the choice instead.
        """
        while not self._stitch.finished:
            self.placement = await self._place()
            try:
                async with aclosing(self._attempt(self.placement)) as frames:
                    async for frame in frames:
                        yield frame
            except PandoError as error:
                last = self._failed(error, self.placement.plan)
                if last is not None:
                    yield last
            finally:
                self.placement.release()

    async def _place(self) -> Placement:
        """Choose workers and charge them; a stream that already runs waits a while for some to appear."""
        desk = self._desk
        give_up_s = desk.clock() + desk.config.migration_wait_s
        while True:
            self._ticket.check()
            chosen = self._plan()
            if chosen is not None:
                desk.metrics.plans.labels(chosen.reason).inc()
                return Placement(desk.fleet.load, chosen)
            left_s = min(give_up_s, self._job.deadline_s) - desk.clock()
            if not self._stitch.num_new or left_s <= 0:
                raise self._retries.nobody_left()
            await desk.fleet.wait_for_change(left_s)
            if any(desk.fleet.is_ready(key) for key in self._retries.exclusions.decode):
                self._retries.forgive()

    def _plan(self) -> Plan | None:
        desk, job = self._desk, self._job
        num_output = len(self._stitch.token_ids)
        left = job.params.max_tokens - num_output
        task = Task(
            num_tokens=len(job.prompt_ids) + num_output,
            block_size=job.block_size,
            expected_output_tokens=min(left, desk.config.expected_output_tokens),
            matches={**desk.fleet.view.match(job.hashes), **self._hints.matches},
            landing=self._hints.landing,
        )
        return plan(task, desk.fleet.candidates(), self._retries.exclusions, desk.config.remote_prefill_min_tokens)

    async def _attempt(self, placement: Placement) -> AsyncGenerator[Frame, None]:
        desk, job, stitch = self._desk, self._job, self._stitch
        now_s = desk.clock()
        if now_s >= job.deadline_s:
            raise DeadlineExceeded("the request's time is up", leg=Leg.ROUTER)
        attempt = self._retries.attempt
        request = decode_request(
            job,
            placement.plan,
            choice=self._index,
            attempt=attempt,
            output_ids=stitch.token_ids,
            text_offset=stitch.text_offset,
        )
        if not attempt and not self._index:
            self._trace.planned(now_s)
        call = desk.rpc.generate(placement.plan.decode.address, request, job.deadline_s - now_s, self._ticket)
        async with aclosing(call) as raw:
            async for frame in raw:
                if not stitch.finished and self._pass(frame, placement):
                    yield frame
        if not stitch.finished:
            raise PeerLost("the worker's stream ended before its finish", leg=Leg.DECODE)

    def _pass(self, frame: Frame, placement: Placement) -> bool:
        """Fit a worker's frame into the client's stream, in place; False when nothing of it is new."""
        finished = frame.finish_reason != types_pb2.FINISH_REASON_UNSPECIFIED
        cut = self._stitch.accept(frame.token_index, frame.token_ids, frame.text_offset, len(frame.text), finished)
        if cut.num_tokens:
            _drop_tokens(frame, cut.num_tokens)
        if cut.num_chars:
            frame.text = frame.text[cut.num_chars :]
            frame.text_offset += cut.num_chars
        frame.request_id = self._job.request_id
        frame.choice = self._index
        frame.attempt = self._retries.attempt
        if frame.token_ids:
            self._tokens_came(len(frame.token_ids), placement)
        self._add_prompt(frame)
        if finished:
            self._add_usage(frame)
        return bool(frame.token_ids or frame.text or finished or frame.HasField("prompt"))

    def _tokens_came(self, count: int, placement: Placement) -> None:
        self._ticket.first_token()
        placement.progress(count)
        self._trace.tokens(self._index, count, self._desk.clock())

    def _add_prompt(self, frame: Frame) -> None:
        if self._prompt_sent:
            frame.ClearField("prompt")
            return
        self._prompt_sent = True
        frame.prompt.num_tokens = len(self._job.prompt_ids)
        if self._job.return_prompt_ids:
            frame.prompt.token_ids[:] = self._job.prompt_ids

    def _add_usage(self, frame: Frame) -> None:
        usage = frame.usage
        usage.prompt_tokens = len(self._job.prompt_ids)
        usage.completion_tokens = len(self._stitch.token_ids)
        if not self._index:
            cached = usage.cached_tokens
            self._trace.prompt(usage.prompt_tokens, {tier: getattr(cached, tier) for tier in TIERS})

    def _failed(self, error: PandoError, hit: Plan) -> Frame | None:
        """Note a failure; returns the last frame when what was sent already ends the choice.

        Raises:
            PandoError: the failure is final.
        """
        desk, stitch = self._desk, self._stitch
        if stitch.finished:
            return None
        prefill = hit.prefill.key if hit.prefill else None
        if isinstance(error, PeerLost):
            self._suspect(error.leg, hit.decode.key, prefill)
        ended = closing(self._job, desk.tokenizer, stitch.token_ids, stitch.text_offset) if stitch.num_new else None
        if ended is not None:
            return self._last_frame(ended.stopped, ended.stop_reason, ended.text)
        leg = self._retries.failed(error, hit.decode.key, prefill)
        (desk.metrics.migrations if stitch.num_new else desk.metrics.retries).labels(leg.value).inc()
        desk.log.warning(
            "attempt failed; trying elsewhere",
            request_id=self._job.request_id,
            leg=leg.value,
            reason=error.reason,
            num_tokens_sent=stitch.num_new,
            decode=hit.decode.key[0],
        )
        return None

    def _suspect(self, leg: Leg, decode: WorkerKey, prefill: WorkerKey | None) -> None:
        """Have the worker asked whether it lives; a lost transfer says nothing about either."""
        if leg is Leg.PREFILL and prefill is not None:
            self._desk.fleet.call_failed(prefill)
        elif leg in (Leg.DECODE, Leg.NONE):
            self._desk.fleet.call_failed(decode)

    def _last_frame(self, stopped: bool, stop_reason: str, text: str) -> Frame:
        reason = types_pb2.FINISH_REASON_STOP if stopped else types_pb2.FINISH_REASON_LENGTH
        stitch = self._stitch
        frame = Frame(
            request_id=self._job.request_id,
            choice=self._index,
            attempt=self._retries.attempt,
            token_index=len(stitch.token_ids),
            text_offset=stitch.text_offset,
            text=text,
            finish_reason=reason,
            stop_reason=stop_reason,
        )
        stitch.accept(frame.token_index, (), frame.text_offset, len(text), True)
        self._add_usage(frame)
        return frame


def _drop_tokens(frame: Frame, count: int) -> None:
    del frame.token_ids[:count]
    del frame.logprobs[:count]
    del frame.logits_digests[:count]
    frame.token_index += count
